// Maps of a picture from its attention, with the captions of the library.

import { longNameOf, numbered } from "../token_names.js";
import { propagate } from "./rollouts.js";
import { leftOut, tokensOfQuery } from "./token_sets.js";

/** @typedef {import("./trace.js").Trace} TraceOfMaps */
/** @typedef {{ values: Float32Array, metadata: Record<string, string> }} MapContent */

/**
 * Maps by the names of their methods; every parameter has a value.
 * @type {Record<string, (trace: TraceOfMaps, parameters: any) => MapContent>}
 */
export const DEVICE_MAPS = {
  attention(trace, parameters) {
    const { layer, exclude } = parameters, { excluded, caption } = leftOut(trace, exclude);
    const subject = attentionCaption(trace, parameters), values = attentionOfQuery(trace, parameters, excluded);
    return content(values, "attention weight", [subject, place(trace, layer, parameters.head), caption]);
  },

  attention_mass(trace, parameters) {
    const { mass, layer, head } = parameters, asked = { ...parameters, direction: "row" };
    const first = trace.shape.prefix.length, shares = attentionOfQuery(trace, asked, []).subarray(first);
    const sum = shares.reduce((total, share) => total + share, 0), order = [...shares.keys()].sort((a, b) => shares[a] - shares[b]);
    const values = new Float32Array(trace.tokens).fill(NaN, 0, first);
    let below = 0;
    for (const patch of order) {
      below += shares[patch] / sum;
      values[first + patch] = below > 1 - mass ? 1 : 0;
    }
    const subject = `Where ${Math.round(100 * mass)}% of the patches' attention is. ${attentionCaption(trace, asked)}`;
    return content(values, "inside or outside", [subject, place(trace, layer, head)]);
  },

  pooling_attention(trace, { head }) {
    const { heads, layers } = trace.shape, pooled = /** @type {Float32Array} */ (trace.pooled);
    const ofHead = (/** @type {number} */ each) => pooled.subarray(each * trace.tokens, (each + 1) * trace.tokens);
    const values = typeof head === "number" ? ofHead(head).slice() : new Float32Array(trace.tokens).map((_, token) => {
      const all = Array.from({ length: heads }, (_, each) => ofHead(each)[token]);
      return head === "mean" ? all.reduce((total, weight) => total + weight, 0) / heads : Math[head === "max" ? "max" : "min"](...all);
    });
    const where = `Attention from the pooling query to each patch, after ${numbered("layer", layers - 1, layers)}`;
    return content(values, "attention weight", [where, typeof head === "number" ? `head ${head}` : `${head} of ${heads} heads`]);
  },

  rollout(trace, parameters) {
    const { start_layer: start, end_layer: end, reference, discard_ratio: ratio, residual_weight: residual, query } = parameters;
    checkRollout(trace, parameters);
    const { excluded, caption } = leftOut(trace, parameters.exclude), { heads, prefix } = trace.shape;
    const chosen = tokensOfQuery(trace.shape, query), isPooled = trace.pooled !== null && (query ?? null) === null;
    const rows = isPooled ? pooledRow(trace) : new Float64Array(trace.tokens).fill(0);
    if (!isPooled) for (const token of chosen) rows[token] = 1 / chosen.length;
    let values = Float32Array.from(propagate(trace, parameters, rows, excluded));
    if (reference) {
      const highest = Math.max(...values.subarray(prefix.length));
      if (highest <= 0) throw Error(`Attention rollout: no patch is left after discarding ${100 * ratio}% of every layer.`);
      values = values.map((value) => value / highest);
    }
    const name = isPooled ? "the pooling query" : longNameOf(query ?? (prefix.includes("cls") ? "cls" : "patches"));
    const subject = `Attention rollout for ${name}${reference ? `, as ${reference} computes it` : ""}`;
    const settings = [
      `${parameters.head_fusion} of ${heads} heads`, `residual ${residual}`,
      ...(ratio > 0 ? [`lowest ${Number((100 * ratio).toPrecision(6))}% discarded`] : []),
      end > start ? `layers ${start} to ${end}` : `layer ${start}`, ...(caption ? [caption] : []),
    ];
    const quantity = reference ? "share relative to the highest patch" : "share of the rollout";
    const isPatch = Array.isArray(query), own = isPatch ? `; ${name} itself is excluded from the colour range (residual identity)` : "";
    const map = content(values, quantity, [`${subject}: ${settings.join(", ")}${own}`]);
    if (isPatch) map.metadata.self = String(chosen[0]);
    return map;
  },
};

/**
 * @param {Float32Array} values
 * @param {string} quantity
 * @param {string[]} parts of the caption
 * @returns {MapContent}
 */
function content(values, quantity, parts) {
  return { values, metadata: { description: parts.filter(Boolean).join(", "), quantity } };
}

/**
 * @param {TraceOfMaps} trace
 * @param {{ layer: number, head: Head, query: Query, direction: Direction }} parameters
 * @param {number[]} excluded
 */
const attentionOfQuery = (trace, { layer, head, query, direction }, excluded) =>
  trace.map(layer, head, tokensOfQuery(trace.shape, query), direction, excluded);

/**
 * @param {TraceOfMaps} trace
 * @param {{ query: Query, direction: Direction }} parameters
 */
function attentionCaption({ shape: { prefix } }, { query, direction }) {
  const name = longNameOf(query ?? (prefix.includes("cls") ? "cls" : "patches"));
  return direction === "column" ? `Attention each patch pays to ${name}` : `Attention from ${name} to each patch`;
}

/**
 * @param {TraceOfMaps} trace
 * @param {number} layer
 * @param {Head} head
 */
const place = ({ shape: { layers, heads } }, layer, head) =>
  `${numbered("layer", layer, layers)}, ${typeof head === "number" ? `head ${head}` : `${head} of ${heads} heads`}`;

/**
 * What the learned query of an attention pooling reads, in the mean of its heads.
 * @param {TraceOfMaps} trace
 */
function pooledRow({ pooled, tokens, shape: { heads } }) {
  const row = new Float64Array(tokens);
  for (const [index, weight] of /** @type {Float32Array} */ (pooled).entries()) row[index % tokens] += weight / heads;
  return row;
}

/**
 * Refuse parameters that contradict each other.
 * @param {TraceOfMaps} trace
 * @param {any} parameters of a rollout
 */
function checkRollout({ pooled, shape: { layers, prefix } }, parameters) {
  const { start_layer: start, end_layer: end, reference, residual_weight: residual, exclude, query } = parameters;
  if (end < start) throw Error(`end_layer ${end}: below the start layer, ${start}; expected a layer from ${start} to ${layers - 1}.`);
  if (pooled && (query ?? null) === null && end < layers - 1)
    throw Error(`end_layer = ${end}: the pooling query, with which this map begins, reads the last layer, ${layers - 1}.`);
  if (!reference) return;
  if (residual !== 0.5 || start !== 0)
    throw Error(`residual_weight = ${residual} and start_layer = ${start}: ${reference} knows only 0.5 and 0.`);
  if (end !== layers - 1) throw Error(`end_layer = ${end}: ${reference} knows only the last layer, -1.`);
  if (exclude) throw Error(`exclude = ${exclude}: ${reference} leaves no token out; expected none.`);
  if (!prefix.includes("cls")) throw Error(`This model has no CLS token, which ${reference} takes for granted.`);
}
