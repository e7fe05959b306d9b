// What is said of a map below it.

import { digits } from "./numbers.js";
import { METHODS } from "./settings.js";
import { longNameOf, nameOf, queryOf } from "./token_names.js";
import { placeOf, tokenOf, valueOf } from "./tokens.js";

/**
 * A caption's words for attention from or to a token.
 * @param {string} name
 * @param {Direction} direction
 */
export const attentionOf = (name, direction) =>
  direction === "column" ? `Attention each patch pays to ${name}` : `Attention from ${name} to each patch`;

/**
 * The caption of a map.
 * @param {Pane} pane
 * @param {Query} query
 * @param {Float32Array | null} values
 */
export function captionOf(pane, query, values) {
  const { view, facts, attention } = pane;
  if (!values) return `${METHODS[view.method].title}: being ${pane.sourceOf(query).kind === "map" ? "computed" : "fetched"} …`;
  const { description } = pane.metadata(query), coloured = pane.withoutIdentity(query, values);
  const opening = description ?? liveCaption(pane, query), patches = values.subarray(attention.prefix);
  const best = attention.strongest(coloured), others = pane.scaleValues(coloured);
  let strongest = `Strongest: ${nameOf(queryOf(best, facts))} with ${digits(values[best])}`;
  // A flat map has no strongest patch, which the server's description says; nor has a binary one.
  if (others.length > 1 && others.every((/** @type {number} */ value) => value === others[0]))
    strongest = description ? "" : `Every patch is ${digits(others[0])}`;
  else if (patches.every((value) => value === 0 || value === 1))
    strongest = `${patches.reduce((sum, value) => sum + value)} of ${patches.length} patches`;
  const sentences = [opening, strongest].filter(Boolean).join(". ");
  return /[.!?…]$/.test(sentences) ? sentences : `${sentences}.`;
}

/**
 * Of a map that the page computes.
 * @param {Pane} pane
 * @param {Query} query
 */
function liveCaption(pane, query) {
  const { view, facts, model } = pane, { layers, heads } = facts;
  const token = /** @type {number} */ (tokenOf(query, facts, model)), name = longNameOf(query ?? queryOf(token, facts));
  if (view.method === "rollout") {
    const suffix = pane.identityToken(query) === undefined
      ? "" : `; ${name} itself is excluded from the colour range (residual identity)`;
    const all = layers > 1 ? `layers 0 to ${layers - 1}` : "layer 0";
    return `Attention rollout for ${name}: mean of ${heads} heads, residual 0.5, ${all}${suffix}`;
  }
  return `${attentionOf(name, valueOf(view, "direction", facts))}, ${placeOf(view, facts)}`;
}
