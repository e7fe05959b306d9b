// Maps of a picture from its attention, with the captions of the library.

import { longNameOf, numbered } from "../token_names.js";
import { checkReference, checkSpan, propagate, rolloutCaption } from "./rollouts.js";
import { leftOut, queryOrDefault, tokensOfQuery } from "./token_sets.js";

/** @typedef {import("./trace.js").Trace} TraceOfMaps */

/**
 * Maps by the names of their methods; every parameter has a value.
 * @type {Record<string, (trace: TraceOfMaps, parameters: any) => import("./pack_writer.js").MapContent>}
 */
export const DEVICE_MAPS = {
  attention(trace, parameters) {
    const { layer, exclude } = parameters, { excluded, caption } = leftOut(trace, exclude);
    const subject = attentionCaption(trace, parameters), values = attentionOfQuery(trace, parameters, excluded);
    return content(values, "attention weight", [subject, place(trace, layer, parameters.head), caption]);
  },

  attention_mass(trace, parameters) {
    const { mass, layer, head } = parameters, byRow = { ...parameters, direction: "row" };
    const first = trace.shape.prefix.length, shares = attentionOfQuery(trace, byRow, []).subarray(first);
    const sum = shares.reduce((total, share) => total + share, 0), order = [...shares.keys()].sort((a, b) => shares[a] - shares[b]);
    const values = new Float32Array(trace.tokens).fill(NaN, 0, first);
    let below = 0;
    for (const patch of order) {
      below += shares[patch] / sum;
      values[first + patch] = below > 1 - mass ? 1 : 0;
    }
    const subject = `Where ${Math.round(100 * mass)}% of the patches' attention is. ${attentionCaption(trace, byRow)}`;
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
    const { reference, discard_ratio: ratio, query } = parameters, { heads, layers, prefix } = trace.shape;
    const isPooled = trace.pooled !== null && (query ?? null) === null;
    checkSpan(parameters, layers, isPooled);
    checkReference(parameters, layers, prefix);
    const { excluded, caption } = leftOut(trace, parameters.exclude), chosen = tokensOfQuery(trace.shape, query);
    const rows = isPooled ? pooledRow(trace) : new Float64Array(trace.tokens).fill(0);
    if (!isPooled) for (const token of chosen) rows[token] = 1 / chosen.length;
    let values = Float32Array.from(propagate(trace, parameters, rows, excluded));
    if (reference) {
      const highest = Math.max(...values.subarray(prefix.length));
      if (highest <= 0) throw Error(`Attention rollout: no patch is left after discarding ${100 * ratio}% of every layer.`);
      values = values.map((value) => value / highest);
    }
    const name = isPooled ? "the pooling query" : longNameOf(queryOrDefault(trace.shape, query));
    const about = rolloutCaption(`Attention rollout for ${name}`, `${parameters.head_fusion} of ${heads} heads`, parameters, caption);
    return { values, ...about, self: Array.isArray(query) ? chosen[0] : undefined };
  },
};

/**
 * @param {Float32Array} values
 * @param {string} quantity
 * @param {string[]} parts of the caption
 */
const content = (values, quantity, parts) => ({ values, description: parts.filter(Boolean).join(", "), quantity });

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
function attentionCaption({ shape }, { query, direction }) {
  const name = longNameOf(queryOrDefault(shape, query));
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
