// Menus of the head: one is open at a time, and a click elsewhere or Escape closes it.

import { findAll } from "./dom.js";

export function closeMenus(/** @type {any} */ except = null) {
  for (const menu of findAll(".vx-menu-of[open]")) if (menu !== except && !menu.contains(except)) menu.querySelector("summary").click();
}

export function listenToMenus() {
  document.addEventListener("pointerdown", (event) => closeMenus(event.target));
  document.addEventListener("keydown", (event) => event.key === "Escape" && closeMenus());
}
