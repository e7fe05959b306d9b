// From the gradient of a score back to that of the last layer's tokens: the reverse of reading.js.

import { classify } from "./reading.js";

/** Closer to its maximum than this, a score's gradient is mostly rounding. */
const MAXIMUM_MARGIN = 1e-6;

/**
 * The score of the tokens in the stream, and its gradient with respect to logits or features.
 * @param {Network} network
 * @param {number} tokens
 * @param {ScoreTarget} target
 */
export function scoreGradient(network, tokens, { index, against, margin, features: other }) {
  const { logits, features } = classify(network, tokens);
  if (other) {
    const length = Math.hypot(...features), gradient = new Float32Array(features.length);
    const score = features.reduce((total, value, i) => total + (value * other[i]) / length, 0);
    if (score >= 1 - MAXIMUM_MARGIN) throw Error("The score is at its maximum: no gradient can say what would raise it");
    features.forEach((value, i) => { gradient[i] = (other[i] - (score * value) / length) / length; });
    return { score, logits, gradient, isOfLogits: false };
  }
  const gradient = new Float32Array(logits.length);
  if (index === undefined || !(index in logits)) throw Error(`class ${index}: there are ${logits.length}`);
  let rival = against;
  if (margin) for (let i = 0; i < logits.length; i++) if (i !== index && (rival === undefined || logits[i] > logits[rival])) rival = i;
  gradient[index] = 1;
  if (rival !== undefined) gradient[rival] -= 1;
  return { score: logits[index] - (rival === undefined ? 0 : logits[rival]), logits, gradient, isOfLogits: true };
}

/**
 * The gradient of the patches from that of what a learned query pools of them, added to `out`; "head token", the weights of that
 * query times the gradient with respect to them.
 * @param {Gradients} gradients
 * @param {number} pooled
 * @param {number} out
 */
function attentionPoolingBackward(gradients, pooled, out) {
  const { network, at } = gradients, { kernels, config: { width, heads }, prefix } = network, dim = width / heads;
  const patches = gradients.tokens - prefix, context = at.context, scale = dim ** -0.5;
  const products = new Float32Array(heads * (prefix + patches));
  network.norm("pooler.mlp_norm", network.at.attended, network.at.pooledNormed, 1, width);
  gradients.mlp("pooler.mlp", network.at.pooledNormed, pooled, at.attended, 1);
  gradients.norm("pooler.mlp_norm", network.at.attended, at.attended, pooled, 1, width, true);
  gradients.linear("pooler.projection", pooled, context, 1, width, width);
  for (let head = 0; head < heads; head++) {
    const view = (/** @type {number} */ pointer, rows = patches) => kernels.floats(pointer + head * rows * dim * 4, rows * dim);
    const query = view(network.pointer("pooler.query"), 1), gradient = view(context, 1);
    const keys = view(network.at.poolerKeys), values = view(network.at.poolerValues);
    const keyGradients = view(at.poolerKeys), valueGradients = view(at.poolerValues);
    const weights = new Float64Array(patches), slopes = new Float64Array(patches);
    for (let t = 0; t < patches; t++)
      for (let d = 0; d < dim; d++) weights[t] += query[d] * keys[t * dim + d] * scale, slopes[t] += gradient[d] * values[t * dim + d];
    const most = weights.reduce((a, b) => Math.max(a, b)), sum = weights.reduce((total, score) => total + Math.exp(score - most), 0);
    let mean = 0;
    for (let t = 0; t < patches; t++) {
      weights[t] = Math.exp(weights[t] - most) / sum;
      mean += products[head * (prefix + patches) + prefix + t] = weights[t] * slopes[t];
    }
    for (let t = 0; t < patches; t++)
      for (let d = 0, change = weights[t] * (slopes[t] - mean) * scale; d < dim; d++)
        keyGradients[t * dim + d] = change * query[d], valueGradients[t * dim + d] = weights[t] * gradient[d];
    const start = head * patches * dim * 4;
    gradients.linear("pooler.keys", at.poolerKeys + start, out, patches, width, dim, { head, accumulate: true });
    gradients.linear("pooler.values", at.poolerValues + start, out, patches, width, dim, { head, accumulate: true });
  }
  return products;
}

/**
 * From the gradient of logits or features to that of the stream, which stays in memory. The stream must have been classified last.
 * @param {Gradients} gradients
 * @param {Float32Array} gradient
 * @param {boolean} isOfLogits
 * @returns {Float32Array | null} as `attentionPoolingBackward`; null for other poolings
 */
export function poolBackward(gradients, gradient, isOfLogits) {
  const { network, at, tokens } = gradients, { kernels, config, prefix } = network, { width, pooling, final_norm: finalNorm } = config;
  const twice = pooling === "cls and mean" || pooling === "cls and distillation", pooledWidth = twice ? 2 * width : width;
  const represented = config.representation_width || pooledWidth;
  let place = at.features, spare = at.otherFeatures, count = gradient.length;
  kernels.floats(place, count).set(gradient);
  /** @type {(name: string, depth: number) => void} */
  const back = (name, depth) => {
    gradients.linear(name, place, spare, 1, depth, count);
    [place, spare] = [spare, place], count = depth;
  };
  if (isOfLogits && config.classes) back("classifier", config.projection_width || represented);
  if (config.projection_width) back("projection", represented);
  if (config.representation_width) {
    const values = kernels.floats(network.at.represented, count);
    kernels.floats(place, count).forEach((slope, i, all) => { all[i] = slope * (1 - values[i] ** 2); });
    back("representation", pooledWidth);
  }
  if (finalNorm === "after pooling") gradients.norm("norm", network.at.pooled, place, place, 1, count, false);
  const pooled = kernels.floats(place, count), out = kernels.floats(at.stream, tokens * width).fill(0);
  const give = (/** @type {number} */ first, /** @type {number} */ end, /** @type {number} */ part) => {
    for (let token = first; token < end; token++)
      for (let i = 0; i < width; i++) out[token * width + i] += pooled[part * width + i] / (end - first);
  };
  const cls = network.file.input.prefix.indexOf("cls"), distillation = network.file.input.prefix.indexOf("distillation");
  let products = null;
  if (pooling === "attention") products = attentionPoolingBackward(gradients, place, at.stream + prefix * width * 4);
  else if (pooling.startsWith("mean")) give(pooling === "mean" ? prefix : 0, tokens, 0);
  else give(cls, cls + 1, 0);
  if (pooling === "cls and mean") give(prefix, tokens, 1);
  if (pooling === "cls and distillation") give(distillation, distillation + 1, 1);
  if (finalNorm === "before pooling") gradients.norm("norm", network.at.stream, at.stream, at.stream, tokens, width, false);
  return products;
}
