// A magnifier above the pointer, where a finger or small cells hide what is asked.

import { contextOf, find } from "./dom.js";
import { clamped } from "./numbers.js";

// In pixels of the page: its side, and how far above the pointer it ends.
const LENS_SIDE = 132, LENS_GAP = 26;

/**
 * Show what a canvas has around a point, or nothing without a canvas. What is asked is drawn with the next frame, and the lens after it.
 * @param {(() => HTMLCanvasElement) | null} source
 * @param {[number, number]} point in pixels of the source
 * @param {number} times pixels of the lens for each of the source
 * @param {{ clientX: number, clientY: number }} event
 */
export function showLens(source, [x, y], times, { clientX, clientY }) {
  const lens = find("lens");
  lens.hidden = !source;
  if (!source) return;
  const above = clientY - LENS_SIDE - LENS_GAP, left = clamped(clientX - LENS_SIDE / 2, 4, innerWidth - LENS_SIDE - 4);
  Object.assign(lens.style, { left: `${left}px`, top: `${above < 4 ? clientY + LENS_GAP : above}px` });
  requestAnimationFrame(() => {
    const side = LENS_SIDE * Math.min(2, devicePixelRatio || 1), span = side / times, context = contextOf(lens);
    Object.assign(lens, { width: side, height: side });
    context.imageSmoothingEnabled = false;
    context.drawImage(source(), x - span / 2, y - span / 2, span, span, 0, 0, side, side);
  });
}

export const hideLens = () => showLens(null, [0, 0], 1, { clientX: 0, clientY: 0 });
