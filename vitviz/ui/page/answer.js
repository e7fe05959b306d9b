// The answer in one sentence, above the picture.

import { labelOf } from "./class_names.js";
import { create, find, setText } from "./dom.js";
import { percent } from "./numbers.js";
import { activePane, activeView, isDouble, page, panes, store } from "./page.js";
import { backend } from "./settings.js";

// Below this probability the sentence says that the model is not sure.
const SURE = 0.5;
// A longer sentence is smaller: its place is reserved, so that nothing moves while somebody paints.
const LONG_CHARS = 72;

/**
 * What the model says now, the likeliest class first; of what is hidden from it, with the probabilities before.
 * @param {Facts} facts
 * @returns {{ index: number, probability: number, before?: number }[]}
 */
export function predictionsNow({ uid, predictions }) {
  if (page.changes?.unit !== "probability" || page.changes.uid !== uid) return predictions;
  const rows = [...page.changes.rows].sort((one, other) => other.after - one.after).slice(0, predictions.length);
  return rows.map(({ index, before, after }) => ({ index, probability: after, before }));
}

/** What the model says of the picture, without what is hidden from it. */
export function showAnswer() {
  const { facts, model } = activePane(), classes = model.labels.length.toLocaleString("en");
  if (isDouble() && panes.every((pane) => pane.facts) && panes[0].key !== panes[1].key) return showAnswers();
  find("all-on").hidden = !store.state.views.some(namesOfHidden);
  const names = namesOfHidden(activeView()), [best] = predictionsNow(facts);
  const hidden = names && best?.before !== undefined ? `Without ${names}: ` : "";
  const isSure = best?.probability >= SURE, was = (/** @type {(probability: number) => string} */ text) =>
    (best?.before === undefined ? "" : `${text(best.before).replace(/ ?%/, "")} → `);
  const sureness = best && `, ${was(wholePercent)}${wholePercent(best.probability)} sure.`;
  const [before, after] = isSure ? [hidden || "The model says ", sureness]
    : [hidden ? `${hidden}perhaps ` : `Not sure. Closest of its ${classes} classes: `,
      best && ` (${was(percent)}${percent(best.probability)}).`];
  const parts = best ? [before, nameOfClass(model, best), after]
    : [backend.computes ? `This model names no classes: ask where it looks${backend.has("likeness") ? ", or what is alike" : ""}.` : ""];
  setHeadline(parts);
}

/**
 * A sentence that stays as it is, is not read out again.
 * @param {(string | HTMLElement)[]} parts
 */
function setHeadline(parts) {
  const headline = find("headline"), text = parts.map((part) => (typeof part === "string" ? part : part.textContent)).join("");
  headline.classList.toggle("vx-long", text.length > LONG_CHARS);
  if (headline.textContent !== text) headline.replaceChildren(...parts);
}

/** What the model says of A and of B, where they are of two pictures or two models. */
function showAnswers() {
  find("all-on").hidden = !store.state.views.some(namesOfHidden);
  const parts = panes.flatMap(({ facts, model, view }, index) => {
    const names = namesOfHidden(view), best = names ? null : facts.predictions[0];
    const start = `${index ? " · " : ""}${"AB"[index]}: `;
    if (!best) return [start, names ? `${names} hidden` : "no classes"];
    return [start, best.probability < SURE ? "perhaps " : "", nameOfClass(model, best), `, ${wholePercent(best.probability)}`];
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
