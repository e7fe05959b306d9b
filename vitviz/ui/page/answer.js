// The answer in one sentence, above the picture.

import { labelOf } from "./class_names.js";
import { create, createButton, find, setText } from "./dom.js";
import { openMenu } from "./menus.js";
import { shortPercent, wholePercent } from "./numbers.js";
import { activePane, activeView, isDouble, page, panes, store } from "./page.js";
import { backend } from "./settings.js";
import { wordsOfFinger } from "./touches.js";

// Below this probability the sentence says that the model is not sure.
const SURE = 0.5;
// A longer sentence is smaller: its place is reserved, so that nothing moves while somebody paints.
const LONG_CHARS = 56;

/**
 * What the model says now, the likeliest class first; of what is hidden from it, with the probabilities before, and NaN until it
 * has answered.
 * @param {Facts} facts
 * @returns {{ index: number, probability: number, before?: number }[]}
 */
export function predictionsNow({ predictions }) {
  if (!namesOfHidden(activeView())) return predictions;
  const { changes } = page, rows = [...changes?.classes ?? []].sort((one, other) => other.after - one.after);
  return changes ? rows.slice(0, predictions.length).map(({ index, before, after }) => ({ index, probability: after, before }))
    : predictions.map(({ index, probability }) => ({ index, probability: NaN, before: probability }));
}

/** What the model says of the picture, without what is hidden from it. */
export function showAnswer() {
  const { facts, model } = activePane(), hidden = namesOfHidden(activeView());
  find("all-on").hidden = !store.state.views.some(namesOfHidden);
  if (isDouble() && panes.every((pane) => pane.facts) && panes[0].key !== panes[1].key) return showAnswers();
  const [best] = predictionsNow(facts);
  if (!best) return setHeadline([backend.computes ? "This model names no classes: ask where it looks, or what is alike." : ""]);
  const { probability, before } = best, known = classesOf(model, "the ");
  // The latest answer is without what was hidden when it was asked for.
  const without = hidden && `Without ${page.changes?.names ?? hidden}: of `;
  if (Number.isNaN(probability)) return setHeadline([without, known, ", …"]);
  const isSure = probability >= SURE, was = (/** @type {(probability: number) => string} */ text) =>
    (before === undefined ? "" : `${text(before).replace(/ ?%/, "")} → `);
  const [start, link] = without ? [without, isSure ? ", " : ", perhaps "] : [isSure ? "Of " : "Not sure. Closest of ", ": "];
  const sureness = isSure ? `, ${was(wholePercent)}${wholePercent(probability)}.` : ` (${was(shortPercent)}${shortPercent(probability)}).`;
  setHeadline([start, known, link, nameOfClass(model, best), sureness]);
}

/**
 * The number of things of which a model names one, as a button that lists them all.
 * @param {Model} model
 * @param {string} article
 * @param {number=} index of its pane, if it is one of two
 */
const classesOf = ({ labels: { length } }, article, index) => createButton({
  className: "vx-list", textContent: `${article}${length.toLocaleString("en")} thing${length === 1 ? "" : "s"} it knows`,
  title: "List them all", onclick: () => {
    page.active = index ?? page.active;
    store.refresh();
    openMenu("model");
    find("all-classes").open = true;
    const { offsetTop, offsetParent: menu } = find("classes");
    menu.scrollTop = offsetTop - 12;
    menu.scrollIntoView({ block: "nearest" });
  },
});

/**
 * A sentence that stays as it is, is not read out again.
 * @param {(string | HTMLElement)[]} parts
 */
export function setHeadline(parts) {
  const headline = find("headline"), text = parts.map((part) => (typeof part === "string" ? part : part.textContent)).join("");
  headline.classList.toggle("vx-long", text.length > LONG_CHARS);
  if (headline.textContent !== text) headline.replaceChildren(...parts);
}

/** What the model says of A and of B, where they are of two pictures or two models. */
function showAnswers() {
  setHeadline(panes.flatMap(({ facts, model, view, index }) => {
    const names = namesOfHidden(view), best = names ? null : facts.predictions[0], start = `${index ? " · " : ""}${"AB"[index]}`;
    if (!best) return [`${start}: ${names ? `${names} hidden` : "no classes"}`];
    const link = best.probability < SURE ? ": perhaps " : ": ";
    return [`${start}, of `, classesOf(model, "", index), link, nameOfClass(model, best), `, ${wholePercent(best.probability)}`];
  }));
}

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
 * What a map is of while something is hidden: it was made with everything in place. Empty if nothing is hidden.
 * @param {View} view
 */
export const wholeName = (view) => namesOfHidden(view) && `whole picture${view.heads_off.length ? ", all heads" : ""}`;

/**
 * @param {Model} model
 * @param {{ index: number }} prediction
 */
const nameOfClass = (model, { index }) => create("b", { textContent: labelOf(model, index).split(",")[0] });

/** @param {string} text */
export const showLead = (text) => setText(find("lead"), wordsOfFinger(text));
