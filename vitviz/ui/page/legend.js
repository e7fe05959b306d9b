// The legend in the corner of a stage: the ramp as it looks over the picture, its ends, and the quantity.

import { composited, gradient } from "./colours.js";
import { setText } from "./dom.js";
import { digits } from "./numbers.js";
import { SCALES } from "./settings.js";

// Of the larger end, what is written as 0: no colour shows the difference.
const NEGLIGIBLE = 5e-4;

/**
 * @param {Pane} pane
 * @param {FittedScale | null} scale null where there is nothing to say
 * @param {any} values of the map: an end of the scale is marked if values lie beyond it
 * @param {any} table
 * @param {string} quantity
 * @param {string=} sharing of two maps, whether the scale is of both
 */
export function showLegend(pane, scale, values, table, quantity, sharing = "") {
  pane.find("legend").hidden = !scale;
  if (!scale) return;
  const [below, above] = scale.beyond(values), { title } = SCALES[scale.name], { look } = pane.drawing;
  const least = NEGLIGIBLE * Math.max(...scale.ends.map(Math.abs));
  [pane.find("low").textContent, pane.find("high").textContent] = scale.ends.map((end) => (Math.abs(end) < least ? "0" : digits(end)));
  for (const [name, count] of /** @type {[string, number][]} */ ([["below", below], ["above", above]])) {
    pane.find(name).hidden = count === 0;
    pane.find(name).title = `${count} of ${values.length} patches ${count === 1 ? "lies" : "lie"} ${name} the scale`;
  }
  pane.find("ramp").style.background = gradient(composited(table, pane.painter.ground(look), look, scale.signed));
  pane.find("quantity").textContent = quantity;
  const name = pane.find("scale-name");
  setText(name, `${title.toLowerCase()}${sharing}`);
  name.title = SCALES[scale.automatic && !sharing ? "" : scale.name].help;
  // Unless something else is said, a scale is linear.
  name.hidden = scale.name === "linear" && !sharing;
}

/**
 * Its texts, for a figure: lower end, upper end, and quantity with scale.
 * @param {Pane} pane
 */
export function legendTexts(pane) {
  const [low, high, quantity, scale] = ["low", "high", "quantity", "scale-name"].map((name) => pane.find(name).textContent);
  const [below, above] = ["below", "above"].map((name) => !pane.find(name).hidden);
  const texts = [quantity, scale.replace(/^[^,]+/, "$& scale")].filter(Boolean);
  return [below ? `◄ ${low}` : low, above ? `${high} ►` : high, texts.join(", ")];
}
