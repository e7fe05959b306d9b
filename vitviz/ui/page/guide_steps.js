// The steps of the guide.

import { backend } from "./settings.js";
import { nameOf } from "./token_names.js";

/**
 * About the tokens that are not patches, if there are any.
 * @param {any} options
 */
function prefixSentence({ prefix }) {
  if (!prefix.length) return "";
  const belong = prefix.length > 1 ? "tokens belong" : "token belongs";
  return ` ${prefix.length} more ${belong} to no patch: ${prefix.map(nameOf).join(", ")}. Models of this kind read the class from CLS.`;
}

/** Each step: its text (of the facts of `guideFacts`), the part of the page that it is about, its method, and whether it needs one head. */
export const STEPS = [
  {
    title: "The picture becomes patches",
    part: "canvas",
    text: (/** @type {any} */ { facts: { rows, columns, fit } }) =>
      `The model does not see pixels but ${rows * columns} patches, ${rows} rows of ${columns}. ` +
      `${fit === "crop" ? "The dimmed edges are cut off." : "The whole picture is resized to its input."} ` +
      `“Your picture” chooses ${backend.has("resolutions") ? "fit and resolution" : "the fit"}.`,
  },
  {
    title: "Patches become tokens",
    part: "chips",
    text: (/** @type {any} */ { facts }) =>
      `Every patch becomes a token: a list of numbers that the layers change step by step.${prefixSentence(facts)}`,
  },
  {
    title: "One token asks, the others answer",
    part: "canvas",
    method: "attention",
    isOfOneHead: true,
    text: (/** @type {any} */ { head, name, scores: [low, high], best }) =>
      "In each head a token has a query, and every token a key. " +
      "Their product is a score, shown here minus its mean over all keys. " +
      `In ${head}, ${name} asks: the patches' scores go from ${low} to ${high}, and ${best} answers most strongly. ` +
      "Move over the picture, and another patch asks.",
  },
  {
    title: "Softmax makes weights: the map",
    part: "legend",
    method: "attention",
    isOfOneHead: true,
    text: (/** @type {any} */ { head, scores: [, high], best, weight, sum }) =>
      "Softmax takes e to the power of every score, and divides by the sum: the weights of all tokens sum to 1. " +
      `In ${head}, with the score ${high}, ${best} gets ${weight}; all patches together get ${sum}. ` +
      "The map shows these weights in colours, and the legend which colour stands for which.",
  },
  {
    title: "Heads and layers differ",
    part: "sheet-part",
    method: "attention",
    text: (/** @type {any} */ { facts: { layers, heads } }) =>
      `This model has ${layers} layers of ${heads} heads. The sheet has the same token in all of them: ` +
      "one head may follow edges, another look at its neighbours. Click a cell to see it large.",
  },
  {
    title: "Through all layers, and what it does not say",
    part: "tabs",
    method: "rollout",
    text: () =>
      "Each layer mixes what the layers below have mixed. " +
      "Attention rollout multiplies their attention: it shows where information may have come from. " +
      "It does not say how the information is used. For that, ask why, and check the answer under " +
      `${backend.has("scores") ? "“Compare all methods” and " : ""}“What if I hide it?”.`,
  },
];
