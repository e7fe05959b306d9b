// Pinned tokens, each with its colour and a small picture of its map.

import { create, createButton, setChildCount } from "./dom.js";
import { nameOf } from "./token_names.js";

// The palette of Okabe and Ito, for all kinds of colour vision.
export const PIN_COLOURS = ["#e69f00", "#56b4e9", "#009e73", "#f0e442", "#cc79a7", "#d55e00"];

/**
 * One small picture for each pin; `draw` fills a canvas with a token's map, `remove` receives the index of a pin.
 * @param {any} holder
 * @param {any} pins
 * @param {any} draw
 * @param {any} remove
 */
export function showPins(holder, pins, draw, remove) {
  setChildCount(holder, pins.length, () => createButton({ className: "vx-pin", title: "Unpin" }, create("canvas"), create("span")));
  pins.forEach((/** @type {Query} */ query, /** @type {number} */ index) => {
    const button = holder.children[index], [canvas, label] = button.children;
    button.onclick = () => remove(index);
    button.setAttribute("aria-label", `Unpin ${nameOf(query)}`);
    canvas.style.borderColor = PIN_COLOURS[index];
    label.textContent = nameOf(query);
    draw(canvas, query);
  });
}
