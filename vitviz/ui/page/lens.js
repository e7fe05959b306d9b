// A magnifier above the pointer, where a finger or small cells hide what is asked.

import { contextOf, find } from "./dom.js";
import { clamped } from "./numbers.js";

// In pixels of the page: its side, and how far above the pointer it ends.
const LENS_SIDE = 132, LENS_GAP = 26;

/**
 * Show what a canvas has around a point, or nothing without a canvas. What is asked is drawn with the next frame, and the lens after it.
 * @param {[() => HTMLCanvasElement, [number, number], number] | null} about the canvas, the point in its pixels, and the pixels of the
 *   lens for each of them
 * @param {{ clientX: number, clientY: number }} event
 */
export function showLens(about, { clientX, clientY }) {
  const lens = find("lens");
  lens.hidden = !about;
  if (!about) return;
  const [source, [x, y], times] = about;
  const above = clientY - LENS_SIDE - LENS_GAP, left = clamped(clientX - LENS_SIDE / 2, 4, innerWidth - LENS_SIDE - 4);
  Object.assign(lens.style, { left: `${left}px`, top: `${above < 4 ? clientY + LENS_GAP : above}px` });
  requestAnimationFrame(() => {
    const side = LENS_SIDE * Math.min(2, devicePixelRatio || 1), span = side / times, context = contextOf(lens);
    Object.assign(lens, { width: side, height: side });
    context.imageSmoothingEnabled = false;
    context.drawImage(source(), x - span / 2, y - span / 2, span, span, 0, 0, side, side);
  });
}
