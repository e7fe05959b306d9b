// Menus of the head: one is open at a time, and a click elsewhere or Escape closes it.

import { findAll } from "./dom.js";

/**
 * Close the open menus but the one around an element; says whether there were any.
 * @param {any} except
 */
export function closeMenus(except = null) {
  const others = findAll(".vx-menu-of[open]").filter((menu) => !menu.contains(except));
  for (const menu of others) {
    const summary = menu.querySelector("summary");
    if (menu.contains(document.activeElement)) summary.focus();
    summary.click();
  }
  return others.length > 0;
}

/**
 * Open a menu, and the part of it that is a panel.
 * @param {string} panel
 */
export function openMenu(panel) {
  for (const part of findAll(`details:has([data-panel="${panel}"]), [data-panel="${panel}"]`)) part.open = true;
}

export function listenToMenus() {
  document.addEventListener("pointerdown", (event) => {
    const { target } = /** @type {{ target: any }} */ (event);
    // A dialog that a menu has opened goes back to it.
    if (target.closest?.("dialog") || !closeMenus(target) || !target.closest?.(".vx-canvas")) return;
    // The picture gets neither this press nor its click.
    event.stopPropagation();
    const swallow = (/** @type {Event} */ click) => click.stopPropagation();
    document.addEventListener("click", swallow, { capture: true, once: true });
    document.addEventListener("pointerdown", () => document.removeEventListener("click", swallow, true), { capture: true, once: true });
  }, true);
}
