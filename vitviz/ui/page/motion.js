// What moves by itself. The first seconds of a visit: colour drains, a square asks, a line goes to what it looks at, and the map glows.

import { contextOf, create, svgPart } from "./dom.js";
import { onTouch } from "./touches.js";

const SEEN = "vitviz-opening-seen";

/**
 * What a stage shows now lies over what it shows next, and fades.
 * @param {Pane} pane
 */
export function crossFade({ element }) {
  if (matchMedia("(prefers-reduced-motion: reduce)").matches) return;
  const base = /** @type {HTMLCanvasElement} */ (element.querySelector("canvas")), { offsetLeft: left, offsetTop: top } = base;
  const style = `left: ${left}px; top: ${top}px; width: ${base.clientWidth}px; height: ${base.clientHeight}px`;
  const before = create("canvas", { className: "vx-fading", width: base.width, height: base.height, style });
  contextOf(before).drawImage(base, 0, 0);
  before.onanimationend = () => before.remove();
  base.after(before);
}

/** Whether the opening was seen before; where a page may keep nothing, such as in a notebook, it is not shown. */
function wasSeen() {
  try {
    const before = sessionStorage.getItem(SEEN);
    sessionStorage.setItem(SEEN, "1");
    return before !== null;
  } catch {
    return true;
  }
}

/**
 * Play it over the stage, once a visit, and never where less motion is wanted.
 * @param {Pane} pane
 */
export function playOpening({ painter, facts, element, drawing }) {
  const stage = /** @type {HTMLElement} */ (element.querySelector(".vx-stage")), look = facts.look;
  if (!look || matchMedia("(prefers-reduced-motion: reduce)").matches || wasSeen()) return;
  const base = /** @type {HTMLCanvasElement} */ (stage.querySelector("canvas"));
  const [pale, bright] = [true, false].map((drain) => {
    const canvas = create("canvas", { width: base.width, height: base.height });
    contextOf(canvas).drawImage(painter.pictureOf({ drain }), 0, 0, canvas.width, canvas.height);
    return canvas;
  });
  const { width, height } = base, [x, y, across, down] = painter.patchRectangle(look.query, width, height);
  const [from, middle, to] = painter.arc(...(drawing.arc ?? [look.query, look.place]), width, height);
  const drawn = svgPart("svg", { viewBox: `0 0 ${width} ${height}` },
    svgPart("path", { d: `M ${from} Q ${middle} ${to}`, pathLength: 1 }), svgPart("rect", { x, y, width: across, height: down }));
  const { offsetLeft: left, offsetTop: top, clientWidth, clientHeight } = base;
  const style = `left: ${left}px; top: ${top}px; width: ${clientWidth}px; height: ${clientHeight}px`;
  const overlay = create("div", { className: "vx-opening", style }, pale, bright, drawn);
  const end = () => overlay.remove();
  // Whatever the visitor does ends it.
  onTouch(window, end);
  pale.onanimationend = end;
  stage.append(overlay);
}
