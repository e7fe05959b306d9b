// Attention rollout with all its parameters, as vitviz/attribution/rollout.py computes it.

/**
 * @typedef {{ head_fusion: Fusion, discard_ratio: number, residual_weight: number, start_layer: number, end_layer: number,
 *   reference: string | null }} RolloutOptions
 */

/** @typedef {import("./trace.js").Trace} Trace */

/**
 * Refuse a span of layers that ends below its start, or that the learned query of an attention pooling does not read.
 * @param {{ start_layer: number, end_layer: number }} parameters
 * @param {number} layers
 * @param {boolean} isPooled whether the map begins with that query
 */
export function checkSpan({ start_layer: start, end_layer: end }, layers, isPooled) {
  if (end < start) throw Error(`end_layer ${end}: below the start layer, ${start}; expected a layer from ${start} to ${layers - 1}.`);
  if (isPooled && end < layers - 1)
    throw Error(`end_layer = ${end}: the pooling query, with which this map begins, reads the last layer, ${layers - 1}.`);
}

/**
 * Refuse what a reference does not know.
 * @param {RolloutOptions & { exclude?: string | null }} parameters
 * @param {number} layers
 * @param {string[]} prefix
 */
export function checkReference(parameters, layers, prefix) {
  const { start_layer: start, end_layer: end, reference, residual_weight: residual, exclude } = parameters;
  if (!reference) return;
  if (residual !== 0.5 || start !== 0)
    throw Error(`residual_weight = ${residual} and start_layer = ${start}: ${reference} knows only 0.5 and 0.`);
  if (end !== layers - 1) throw Error(`end_layer = ${end}: ${reference} knows only the last layer, -1.`);
  if (exclude) throw Error(`exclude = ${exclude}: ${reference} leaves no token out; expected none.`);
  if (!prefix.includes("cls")) throw Error(`This model has no CLS token, which ${reference} takes for granted.`);
}

/**
 * The layers of a span in captions.
 * @param {{ start_layer: number, end_layer: number }} parameters
 */
export const layersText = ({ start_layer: start, end_layer: end }) => (end > start ? `layers ${start} to ${end}` : `layer ${start}`);

/**
 * The caption of a rollout and the quantity of its values.
 * @param {string} subject
 * @param {string} fused
 * @param {Omit<RolloutOptions, "head_fusion">} parameters
 * @param {string} rest of the caption
 */
export function rolloutCaption(subject, fused, parameters, rest = "") {
  const { discard_ratio: ratio, residual_weight: residual, reference } = parameters;
  const discarded = ratio > 0 ? `lowest ${Number((100 * ratio).toPrecision(6))}% discarded` : "";
  const settings = [fused, `residual ${residual}`, discarded, layersText(parameters), rest].filter(Boolean);
  return {
    description: `${subject}${reference ? `, as ${reference} computes it` : ""}: ${settings.join(", ")}`,
    quantity: reference ? "share relative to the highest patch" : "share of the rollout",
  };
}

/**
 * Rows "start token" propagated from the end layer's output down to the start layer's input.
 * @param {Trace} trace
 * @param {RolloutOptions} options
 * @param {Float64Array} rows of which each is a share of every token
 * @param {number[]} excluded tokens to which nobody attends
 */
export function propagate(trace, options, rows, excluded) {
  const { residual_weight: residual, start_layer: start, end_layer: end } = options;
  // Every matrix is the identity.
  if (residual === 1) return rows;
  const step = options.reference ? multiplyByColumns : multiplyByRows;
  for (let layer = end; layer >= start; layer--)
    rows = step(rows, withoutLowest(trace.fused(layer, options.head_fusion, excluded), options), trace.tokens, residual);
  return rows;
}

/**
 * A matrix with its lowest entries set to zero; among equal ones, the first in reading order.
 * @param {Float32Array} matrix
 * @param {RolloutOptions} options
 */
function withoutLowest(matrix, { discard_ratio: ratio, reference }) {
  const count = Math.floor(matrix.length * ratio);
  if (!count) return matrix;
  const remaining = matrix.slice(), sorted = matrix.slice().sort(), threshold = sorted[count - 1];
  let ties = count - sorted.findIndex((value) => value === threshold);
  for (let index = 0; index < matrix.length; index++)
    if (matrix[index] < threshold || (matrix[index] === threshold && ties-- > 0)) remaining[index] = 0;
  // The reference never discards the entry from CLS to CLS.
  if (reference) remaining[0] = matrix[0];
  return remaining;
}

/**
 * Rows times the matrix, mixed with the identity, with each row of it divided by its sum.
 * @param {Float64Array} rows
 * @param {Float32Array} matrix
 * @param {number} tokens
 * @param {number} weight
 */
function multiplyByRows(rows, matrix, tokens, weight) {
  const product = new Float64Array(rows.length), residual = weight / (1 - weight), sums = sumsOf(matrix, tokens);
  for (let start = 0; start < rows.length; start += tokens)
    for (let query = 0; query < tokens; query++) {
      const share = rows[start + query], sum = sums[query] + residual;
      if (share === 0) continue;
      // The row of a token whose weights are all discarded becomes that of the identity.
      product[start + query] += sum === 0 ? share : share * residual / sum;
      if (sum > 0) addRow(product, start, matrix, query, tokens, share / sum);
    }
  return product;
}

/**
 * The same, but with column i divided by the sum of row i.
 * @param {Float64Array} rows
 * @param {Float32Array} matrix
 * @param {number} tokens
 * @param {number} weight
 */
function multiplyByColumns(rows, matrix, tokens, weight) {
  const product = new Float64Array(rows.length), sums = sumsOf(matrix, tokens);
  for (let start = 0; start < rows.length; start += tokens) {
    for (let query = 0; query < tokens; query++) addRow(product, start, matrix, query, tokens, (1 - weight) * rows[start + query]);
    for (let token = 0; token < tokens; token++)
      product[start + token] = (product[start + token] + weight * rows[start + token]) / ((1 - weight) * sums[token] + weight);
  }
  return product;
}

/**
 * @param {Float64Array} product
 * @param {number} start
 * @param {Float32Array} matrix
 * @param {number} query
 * @param {number} tokens
 * @param {number} share
 */
function addRow(product, start, matrix, query, tokens, share) {
  for (let key = 0, entry = query * tokens; key < tokens; key++) product[start + key] += share * matrix[entry + key];
}

/**
 * @param {Float32Array} matrix
 * @param {number} tokens
 */
function sumsOf(matrix, tokens) {
  const sums = new Float64Array(tokens);
  for (let index = 0; index < matrix.length; index++) sums[Math.floor(index / tokens)] += matrix[index];
  return sums;
}

/**
 * The rollout of every token with the default parameters: "query key".
 * @param {Trace} trace
 */
export function allRollouts(trace) {
  const { tokens } = trace, start = new Float64Array(tokens * tokens);
  for (let token = 0; token < tokens; token++) start[token * tokens + token] = 1;
  /** @type {RolloutOptions} */
  const options = {
    head_fusion: "mean", discard_ratio: 0, residual_weight: 0.5, start_layer: 0, end_layer: trace.shape.layers - 1, reference: null,
  };
  return propagate(trace, options, start, []);
}
