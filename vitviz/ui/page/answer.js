// The answer in one sentence, above the picture.

import { labelOf } from "./class_names.js";
import { create, find, setText } from "./dom.js";
import { percent } from "./numbers.js";
import { activePane, activeView, isDouble, page, panes, store } from "./page.js";
import { backend } from "./settings.js";

// Below this probability the sentence says that the model is not sure.
const SURE = 0.5;

/** What the model says of the picture, without what is hidden from it. */
export function showAnswer() {
  const { facts, model } = activePane(), classes = model.labels.length.toLocaleString("en");
  if (isDouble() && panes.every((pane) => pane.facts) && panes[0].key !== panes[1].key) return showAnswers();
  const names = namesOfHidden(activeView()), isOfThis = page.changes?.unit === "probability" && page.changes.uid === facts.uid;
  const hidden = names && isOfThis ? `Without ${names}: ` : "";
  find("all-on").hidden = !store.state.views.some(namesOfHidden);
  const answers = hidden
    ? page.changes.rows.map((/** @type {any} */ { index, after }) => ({ index, probability: after }))
    : facts.predictions;
  const [best] = [...answers].sort((one, other) => other.probability - one.probability);
  const isSure = best?.probability >= SURE, sureness = best && `, ${wholePercent(best.probability)} sure.`;
  const [before, after] = isSure ? [hidden || "The model says ", sureness]
    : [hidden ? `${hidden}perhaps ` : `Not sure. Closest of its ${classes} classes: `, best && ` (${percent(best.probability)}).`];
  const parts = best ? [before, nameOfClass(model, best), after]
    : [backend.computes ? `This model names no classes: ask where it looks${backend.has("likeness") ? ", or what is alike" : ""}.` : ""];
  const unlike = facts.is_out_of_distribution ? " Unlike its training pictures: don’t trust the name." : "";
  setHeadline([...parts, unlike]);
}

/**
 * A sentence that stays as it is, is not read out again.
 * @param {(string | HTMLElement)[]} parts
 */
function setHeadline(parts) {
  const headline = find("headline"), text = parts.map((part) => (typeof part === "string" ? part : part.textContent)).join("");
  if (headline.textContent !== text) headline.replaceChildren(...parts);
}

/** What the model says of A and of B, where they are of two pictures or two models. */
function showAnswers() {
  find("all-on").hidden = !store.state.views.some(namesOfHidden);
  const parts = panes.flatMap(({ facts, model, view }, index) => {
    const names = namesOfHidden(view), best = names ? null : facts.predictions[0];
    const named = best ? [nameOfClass(model, best), `, ${wholePercent(best.probability)}`] : [names ? `${names} hidden` : "no classes"];
    return [`${index ? " · " : ""}${"AB"[index]}: `, ...named];
  });
  setHeadline(parts);
}

/**
 * A probability in whole percent; 100 says that it is certain.
 * @param {number} probability
 */
const wholePercent = (probability) => `${probability < 1 ? Math.min(99, Math.round(100 * probability)) : 100} %`;

/**
 * What is hidden from the model, counted; empty if nothing is.
 * @param {View} view
 */
export function namesOfHidden({ patches_off: squares, heads_off: heads }) {
  const counted = (/** @type {number} */ count, /** @type {string} */ name) =>
    (count ? [`${count} ${name}${count === 1 ? "" : "s"}`] : []);
  return [...counted(squares.length, "square"), ...counted(heads.length, "head")].join(" and ");
}

/**
 * @param {Model} model
 * @param {{ index: number }} prediction
 */
const nameOfClass = (model, { index }) => create("b", { textContent: labelOf(model, index).split(",")[0] });

/** @param {string} text */
export const showLead = (text) => setText(find("lead"), text);
