// What is hidden from the model: squares that are painted over, and heads that are switched off.

import { activate } from "./choices.js";
import { range } from "./numbers.js";
import { activePane, activeView, page, store } from "./page.js";
import { backend } from "./settings.js";
import { isEqual } from "./store.js";

export const isHidden = (/** @type {Cell} */ cell) => activeView().patches_off.some((item) => isEqual(item, cell));

/**
 * Whether there is an answer of a model that could change: its classes, or a likeness.
 * @param {Model} model
 */
export const canHide = (model) => backend.computes && (model.labels.length > 0 || backend.has("likeness"));

/**
 * Hide a patch from the model, or show it again.
 * @param {Pane} pane
 * @param {Cell} cell
 * @param {boolean} isOff
 */
export function hidePatch(pane, cell, isOff) {
  activate(pane);
  if (isHidden(cell) === isOff || pane.model.why_no_hiding) return;
  const { patches_off } = activeView();
  store.patchView(page.active, { patches_off: isOff ? [...patches_off, cell] : patches_off.filter((item) => !isEqual(item, cell)) });
}

/**
 * Switch the head of a cell of the sheet off, or on again; a fusion stands for all heads of its layer.
 * The question that it asks is opened.
 * @param {{ layer: number, head: Head }} cell
 */
export function switchHead({ layer, head }) {
  const heads = typeof head === "number" ? [head] : range(activePane().facts.heads), { heads_off } = activeView();
  const isMeant = (/** @type {[number, number]} */ pair) => pair[0] === layer && heads.includes(pair[1]);
  const remaining = heads_off.filter((pair) => !isMeant(pair)), areOff = heads_off.length - remaining.length === heads.length;
  /** @type {[number, number][]} */
  const added = areOff ? [] : heads.map((each) => [layer, each]);
  if (canHide(activePane().model)) store.patchView(page.active, { heads_off: [...remaining, ...added] }, { panel: "switches" });
}
