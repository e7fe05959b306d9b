// The answer in one sentence, above the picture.

import { labelOf } from "./class_names.js";
import { create, find, setText } from "./dom.js";
import { percent } from "./numbers.js";
import { backend } from "./settings.js";

// Below this probability the sentence says that the model is not sure.
const SURE = 0.5;

/**
 * What the model says of the picture.
 * @param {Facts} facts
 * @param {Model} model
 */
export function showAnswer(facts, model) {
  const headline = find("headline"), [best] = facts.predictions, classes = model.labels.length.toLocaleString("en");
  const parts = !best ? [backend.computes ? "This model names no classes: ask where it looks, or what is alike." : ""]
    : best.probability < SURE
      ? [`Not sure. Closest of its ${classes} classes: `, nameOfClass(model, best), ` (${percent(best.probability)}).`]
      : ["The model says ", nameOfClass(model, best), `, ${Math.floor(100 * best.probability)} % sure.`];
  const unlike = facts.is_out_of_distribution ? " Unlike its training pictures: don’t trust the name." : "";
  const text = parts.map((part) => (typeof part === "string" ? part : part.textContent)).join("") + unlike;
  if (headline.textContent !== text) headline.replaceChildren(...parts, unlike);
}

/**
 * @param {Model} model
 * @param {{ index: number }} prediction
 */
const nameOfClass = (model, { index }) => create("b", { textContent: labelOf(model, index).split(",")[0] });

/** @param {string} text */
export const showLead = (text) => setText(find("lead"), text);
