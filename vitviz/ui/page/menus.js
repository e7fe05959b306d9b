// Menus of the head: one is open at a time, and a click elsewhere or Escape closes it.

import { findAll } from "./dom.js";

/**
 * Close the open menus but the one around an element; says whether there were any.
 * @param {any} except
 */
export function closeMenus(except = null) {
  const others = findAll(".vx-menu-of[open]").filter((menu) => !menu.contains(except));
  for (const menu of others) menu.querySelector("summary").click();
  return others.length > 0;
}

export function listenToMenus() {
  document.addEventListener("pointerdown", (event) => closeMenus(event.target));
}
