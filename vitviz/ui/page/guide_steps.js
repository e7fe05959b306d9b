// The steps of the guide.

import { nameOf } from "./tokens.js";

/** Each step: title, text (from the facts of `guideFacts`), the highlighted part of the page, its method, and whether it needs a single head. */
export const STEPS = [
  ["The picture becomes patches", ({ facts }) => `The model does not see pixels but ${facts.rows * facts.columns} patches, ${facts.rows} rows of ${facts.columns}. ` +
    `${facts.fit === "crop" ? "The dimmed edges are cut off." : "The whole picture is resized to its input."} “Seen as” chooses fit and resolution.`, "seen"],
  ["Patches become tokens", ({ facts }) => `Every patch becomes a token: a list of numbers that the layers change step by step.` +
    `${facts.prefix.length ? ` ${facts.prefix.length} more ${facts.prefix.length > 1 ? "tokens belong" : "token belongs"} to no patch: ${facts.prefix.map(nameOf).join(", ")}. Models of this kind read the class from CLS.` : ""}`, "chips"],
  ["One token asks, the others answer", ({ head, name, scores: [low, high], best }) => `In each head a token has a query, and every token a key. Their product is a score, shown here minus its mean over all keys. ` +
    `In ${head}, ${name} asks: the patches' scores go from ${low} to ${high}, and ${best} answers most strongly. Move over the picture, and another patch asks.`, "canvas", "attention", true],
  ["Softmax makes weights: the map", ({ head, scores: [, high], best, weight, sum }) => `Softmax takes e to the power of every score, and divides by the sum: the weights of all tokens sum to 1. ` +
    `In ${head}, with the score ${high}, ${best} gets ${weight}; all patches together get ${sum}. The map shows these weights in colours, and the legend which colour stands for which.`, "legend", "attention", true],
  ["Heads and layers differ", ({ facts }) => `This model has ${facts.layers} layers of ${facts.heads} heads. The sheet has the same token in all of them: ` +
    `one head may follow edges, another look at its neighbours. Click a cell to see it large.`, "sheet-part", "attention"],
  ["Through all layers, and what it does not say", () => `Each layer mixes what the layers below have mixed. Attention rollout multiplies their attention: it shows where information may have come from. ` +
    `It does not say how the information is used. For that, choose a map for a class, and check it under “Compare all methods” and “Switch parts off”.`, "method", "rollout"],
];
