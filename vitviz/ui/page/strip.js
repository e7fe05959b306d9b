// The map of one head in every layer.

import { create, createButton, setChildCount } from "./dom.js";
import { valueOf } from "./tokens.js";

// In milliseconds: drawn once the pointer rests, so that it does not delay the picture.
const STRIP_DELAY = 40;
let stripTimer = 0;

/**
 * A token's map in every layer with the view's head, in a row of pictures; `fittedScale` fits a scale to several maps.
 * @param {any} details
 * @param {Pane} pane
 * @param {number} token
 * @param {ColourTable} table
 * @param {Look} look
 * @param {any} fittedScale
 * @param {any} choose
 */
export function showStrip(details, pane, token, table, look, fittedScale, choose) {
  clearTimeout(stripTimer);
  if (!details.open || token === null) return;
  stripTimer = setTimeout(() => {
    const { facts, view, attention, painter } = pane, frames = details.querySelector(".vx-frames");
    if (!painter) return;
    setChildCount(frames, facts.layers, (layer) =>
      createButton({ className: "vx-frame", onclick: () => choose(layer) }, create("canvas"), `layer ${layer}`),
    );
    const direction = valueOf(view, "direction", facts) ?? "row", head = valueOf(view, "head", facts) ?? "mean";
    [...frames.children].forEach((frame, layer) => {
      const patches = attention.map(layer, head, token, direction)?.subarray(attention.prefix);
      painter.draw(frame.firstElementChild, patches ?? null, patches ? fittedScale([patches]) : null, table, look);
      frame.setAttribute("aria-pressed", layer === valueOf(view, "layer", facts));
    });
  }, STRIP_DELAY);
}
