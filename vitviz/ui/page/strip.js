// The map of one head in every layer, as one slider.

import { create, find, setChildCount } from "./dom.js";

// In milliseconds: drawn once the pointer rests, so that it does not delay the picture.
const STRIP_DELAY = 40;
// A finger that moves so far across chooses.
const SWIPE_PIXELS = 8;
let stripTimer = 0;

/**
 * What a pane shows in every layer, in a row of pictures.
 * @param {Pane} pane
 * @param {number | undefined} chosen the layer that is shown large
 * @param {(canvas: HTMLCanvasElement, layer: number) => void} draw
 */
export function showStrip(pane, chosen, draw) {
  clearTimeout(stripTimer);
  const { facts, painter } = pane, frames = find("frames");
  if (!painter) return;
  // At once, so that nothing below moves later.
  setChildCount(frames, facts.layers, (layer) =>
    create("div", { className: "vx-frame" }, create("canvas"), create("span", { textContent: layer })),
  );
  frames.setAttribute("aria-valuemax", facts.layers - 1);
  frames.setAttribute("aria-valuenow", chosen ?? 0);
  frames.setAttribute("aria-valuetext", chosen === undefined ? "all layers" : `layer ${chosen}`);
  [...frames.children].forEach((frame, layer) => {
    // Its whole pixels would make it a fraction of one higher or lower.
    frame.firstElementChild.style.aspectRatio = 1 / painter.ratio;
    frame.dataset.chosen = layer === chosen;
  });
  stripTimer = setTimeout(() => {
    // The picture may be gone by then.
    if (pane.painter) [...frames.children].forEach((frame, layer) => draw(frame.firstElementChild, layer));
  }, STRIP_DELAY);
}

/**
 * Let clicks, drags and arrow keys choose a layer.
 * @param {(layer: number) => void} choose
 * @param {() => number} layerNow
 */
export function listenToStrip(choose, layerNow) {
  const frames = find("frames");
  const chooseUnder = (/** @type {PointerEvent} */ event) => {
    const layer = [...frames.children].findIndex((frame) => {
      const { left, right } = frame.getBoundingClientRect();
      return event.clientX >= left && event.clientX <= right;
    });
    if (layer >= 0) choose(layer);
  };
  // A finger that goes up or down scrolls the page, which chooses nothing.
  let start = { x: 0, y: 0 };
  frames.onpointerdown = (/** @type {PointerEvent} */ event) => {
    start = { x: event.clientX, y: event.clientY };
    if (event.pointerType !== "touch") chooseUnder(event);
  };
  frames.onpointermove = (/** @type {PointerEvent} */ event) => {
    const isAcross = Math.abs(event.clientX - start.x) > Math.max(SWIPE_PIXELS, Math.abs(event.clientY - start.y));
    if (event.buttons && (event.pointerType !== "touch" || isAcross)) chooseUnder(event);
  };
  frames.onclick = chooseUnder;
  frames.onkeydown = (/** @type {KeyboardEvent} */ event) => {
    const step = /** @type {Record<string, number>} */ ({ ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 })[event.key];
    const end = event.key === "Home" ? 0 : event.key === "End" ? frames.children.length - 1 : null;
    if (!step && end === null) return;
    choose(end ?? layerNow() + step);
    event.preventDefault();
    event.stopPropagation();
  };
}
