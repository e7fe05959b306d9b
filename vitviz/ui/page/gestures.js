// Pointers over a picture: they ask, choose and pin squares, or paint over those to hide.

import { showLens } from "./lens.js";
import { range } from "./numbers.js";
import { queryOf } from "./token_names.js";

// A finger that has moved so far sweeps; one that stays pins.
const SWEEP_PIXELS = 8, HOLD_MS = 500;
// Between two points of a stroke, no more than the side of the smallest square.
const STROKE_PIXELS = 4;
// The fingertip hides the square that it asks about, which is shown above it.
const FINGER_TIMES = 1.6;

/**
 * Let the mouse and one finger act on a pane's picture; two fingers zoom.
 * @param {Pane} pane
 */
export function listenToPicture(pane) {
  const canvas = pane.find("canvas"), { hooks } = pane;
  let start = { x: 0, y: 0 }, last = start, isSweeping = false, isHeld = false, isPainting = false;
  /** @type {ReturnType<typeof setTimeout>} */
  let timer;
  // Where the stroke under way began. It hides squares; what stays on its first one shows that again if it is hidden.
  /** @type {Cell | null} */
  let first = null;
  // What the stroke has hidden so far: two fingers zoom, and what the first one has painted by then is shown again.
  /** @type {Cell[]} */
  let painted = [];
  const takeBack = () => {
    for (const cell of painted) hooks.hide(pane, cell, false);
    [first, painted] = [null, []];
  };

  const paint = (/** @type {PointerEvent} */ { clientX, clientY }) => {
    if (!first || !isPainting) return;
    // A quick stroke has few events: it skips no square between them.
    const [across, down] = [clientX - last.x, clientY - last.y], steps = Math.ceil(Math.hypot(across, down) / STROKE_PIXELS) || 1;
    for (const step of range(steps + 1)) {
      const token = pane.tokenAt({ clientX: last.x + across * step / steps, clientY: last.y + down * step / steps });
      const cell = token === null ? null : pane.attention.cell(token);
      if (!cell || hooks.isHidden(cell)) continue;
      painted.push(cell);
      hooks.hide(pane, cell, true);
    }
    last = { x: clientX, y: clientY };
  };
  const pin = (/** @type {MouseEvent} */ event) => {
    const token = pane.tokenAt(event);
    if (token !== null && !hooks.isHiding()) hooks.pin(pane, token);
    return token !== null;
  };
  canvas.onpointerdown = (/** @type {PointerEvent} */ event) => {
    clearTimeout(timer);
    isSweeping = isHeld = false;
    if (!event.isPrimary) return takeBack();
    painted = [];
    if (hooks.isHiding()) {
      const token = pane.tokenAt(event);
      if (token === null) return;
      first = pane.attention.cell(token);
      canvas.setPointerCapture(event.pointerId);
      start = last = { x: event.clientX, y: event.clientY };
      // A finger may be the first of two, which zoom.
      isPainting = event.pointerType !== "touch" && !hooks.isHidden(first);
      paint(event);
    } else if (event.pointerType === "touch") {
      start = { x: event.clientX, y: event.clientY };
      timer = setTimeout(() => { isHeld = pin(event); }, HOLD_MS);
    }
  };
  canvas.onpointermove = (/** @type {PointerEvent} */ event) => {
    const isTouch = event.pointerType === "touch", hasMoved = Math.hypot(event.clientX - start.x, event.clientY - start.y) > SWEEP_PIXELS;
    isPainting ||= first !== null && hasMoved;
    paint(event);
    if (isTouch && hasMoved) {
      clearTimeout(timer);
      isSweeping = event.isPrimary && !isHeld && !hooks.isHiding();
    }
    if (!isTouch || isSweeping) hooks.hover(pane, pane.tokenAt(event), event);
    if (isTouch && (isSweeping || (first && isPainting)) && pane.tokenAt(event) !== null) {
      const edges = canvas.getBoundingClientRect(), scale = canvas.width / edges.width;
      const point = [(event.clientX - edges.left) * scale, (event.clientY - edges.top) * scale];
      showLens([() => canvas, /** @type {[number, number]} */ (point), FINGER_TIMES], event);
    }
  };
  canvas.onpointerup = canvas.onpointercancel = (/** @type {PointerEvent} */ event) => {
    clearTimeout(timer);
    if (event.type === "pointercancel") takeBack();
    paint(event);
    if (first && !isPainting && event.type === "pointerup") hooks.hide(pane, first, !hooks.isHidden(first));
    first = null;
    const token = isSweeping && event.type === "pointerup" ? pane.tokenAt(event) : null;
    isSweeping = false;
    if (event.pointerType === "touch") {
      showLens(null, event);
      hooks.hover(pane, null);
    }
    if (token !== null) hooks.choose(pane, queryOf(token, pane.facts));
  };
  canvas.onpointerleave = () => hooks.hover(pane, null);
  canvas.onclick = (/** @type {MouseEvent} */ event) => {
    if (isHeld) return;
    canvas.focus({ preventScroll: true });
    const token = pane.tokenAt(event);
    // Of two maps, a click on the other chooses it, and no square.
    if (hooks.activate(pane)) return;
    if (event.shiftKey) pin(event);
    else if (token !== null && !hooks.isHiding()) hooks.choose(pane, queryOf(token, pane.facts));
  };
  canvas.ondblclick = pin;
  canvas.oncontextmenu = (/** @type {Event} */ event) => isHeld && event.preventDefault();
}
