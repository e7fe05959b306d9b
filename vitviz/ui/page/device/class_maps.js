// Maps about a class from gradients of the network, with the captions of the library: relevance, gradient rollout, Grad-CAM,
// LeGrad and integrated gradients; and occlusion.

import { longNameOf, numbered } from "../token_names.js";
import { occlusionMap } from "./occlusion.js";
import { signText, writeMap } from "./pack_writer.js";
import { checkReference, checkSpan, layersText, propagate, rolloutCaption } from "./rollouts.js";
import { deviceTarget } from "./scores.js";
import { inLanes } from "./studies.js";
import { queryOrDefault, tokensOfQuery } from "./token_sets.js";

// A map that is not finished yet is shown anew after this time.
const SHARPEN_MS = 300;

/** @typedef {import("./studies.js").Studied} StudiedPicture */
/**
 * @typedef {{ studied: StudiedPicture, target: import("./scores.js").DeviceTarget, name: string, parameters: any,
 *   report: (done: number, total: number, unfinished?: () => import("./pack_writer.js").MapContent) => void }} ClassMapRequest
 */

/** @param {StudiedPicture} studied */
const prefixOf = ({ network: { file: { input } } }) => input.prefix.length;
/** @param {StudiedPicture} studied */
const tokensOf = ({ network: { file: { input } } }) => input.prefix.length + input.rows * input.columns;

/**
 * The gradients of a score of the picture.
 * @param {ClassMapRequest} request
 * @param {GradientWants} wants
 */
const gradientOf = ({ studied: { network, pixels, signal }, target, report }, wants) =>
  network.team.differentiate(pixels, target.differentiable, wants, { signal }, report);

/**
 * Whether a row has more than equal values at the tokens with which it began.
 * @param {ArrayLike<number>} row
 * @param {number[]} start
 */
function hasLeft(row, start) {
  const begun = new Set(start);
  return start.some((token) => row[token] !== row[start[0]]) || Array.from(row).some((value, token) => value !== 0 && !begun.has(token));
}

/**
 * The row with which a propagation begins: of a token, or of the learned query of an attention pooling.
 * @param {ClassMapRequest} request
 * @param {Float32Array | null} pooled "head token"
 * @param {(mean: Float64Array, values: Float32Array) => void} fuse adds the rows of the heads
 */
function startOf({ studied, parameters }, pooled, fuse) {
  const { config: { depth }, input } = studied.network.file, tokens = tokensOf(studied), row = new Float64Array(tokens);
  const { query } = parameters, isPooled = pooled !== null && (query ?? null) === null;
  checkSpan(parameters, depth, isPooled);
  if (isPooled) {
    fuse(row, pooled);
    return { row, chosen: Array.from({ length: tokens }, (_, token) => token), name: "the pooling query" };
  }
  const chosen = tokensOfQuery(input, query);
  for (const token of chosen) row[token] = 1 / chosen.length;
  return { row, chosen, name: longNameOf(queryOrDefault(input, query)) };
}

/**
 * The patch whose own value has an identity term; undefined for other tokens.
 * @param {ClassMapRequest} request
 */
const selfOf = ({ studied: { network }, parameters: { query } }) =>
  (Array.isArray(query) ? tokensOfQuery(network.file.input, /** @type {Cell} */ (query))[0] : undefined);

/**
 * Values of the patches, with none for the tokens before them.
 * @param {StudiedPicture} studied
 * @param {(patch: number) => number} valueOf
 */
function ofPatches(studied, valueOf) {
  const first = prefixOf(studied);
  return Float32Array.from({ length: tokensOf(studied) }, (_, token) => (token < first ? NaN : valueOf(token - first)));
}

/**
 * The nodes and weights of the Gauss-Legendre integral from 0 to 1, the zeros of a Legendre polynomial by Newton's method.
 * @param {number} count
 */
export function legendreNodes(count) {
  return Array.from({ length: count }, (_, index) => {
    let x = Math.cos((Math.PI * (index + 0.75)) / (count + 0.5)), slope = 1;
    for (let step = 0; step < 100; step++) {
      let before = 1, value = x;
      for (let degree = 2; degree <= count; degree++)
        [before, value] = [value, ((2 * degree - 1) * x * value - (degree - 1) * before) / degree];
      slope = (count * (x * value - before)) / (x * x - 1);
      const change = value / slope;
      x -= change;
      if (Math.abs(change) < 1e-15) break;
    }
    return { node: (1 + x) / 2, weight: 1 / ((1 - x * x) * slope * slope) };
  });
}

/**
 * Maps by the names of their methods; every parameter has a value.
 * @type {Record<string, (request: ClassMapRequest) => Promise<import("./pack_writer.js").MapContent>>}
 */
export const CLASS_MAPS = {
  async relevance(request) {
    const { studied, name, parameters } = request, { start_layer: start, end_layer: end } = parameters;
    const { heads } = studied.network.file.config;
    const { products, pooledProducts } = await gradientOf(request, { products: "positive" }), tokens = tokensOf(studied);
    const { row, chosen, name: query } = startOf(request, pooledProducts, (mean, pooled) =>
      pooled.forEach((value, index) => { mean[index % tokens] += Math.max(0, value) / heads; }));
    let values = row;
    for (let layer = end; layer >= start; layer--) {
      const next = values.slice(), first = layer * tokens ** 2, matrix = /** @type {Float32Array} */ (products);
      for (let from = 0; from < tokens; from++)
        if (values[from] !== 0) for (let key = 0; key < tokens; key++) next[key] += values[from] * matrix[first + from * tokens + key];
      values = next;
    }
    const description = `Relevance for ${name} as ${query} sees it: ${layersText(parameters)}`, raised = hasLeft(values, chosen);
    return { values: Float32Array.from(values), description, quantity: "relevance", raised, self: selfOf(request) };
  },

  async gradient_rollout(request) {
    const { studied, name, parameters } = request, { heads } = studied.network.file.config, tokens = tokensOf(studied);
    const { reference, discard_ratio: ratio, residual_weight: residual } = parameters, { config: { depth }, input } = studied.network.file;
    checkReference(parameters, depth, input.prefix);
    const { products, pooledProducts } = await gradientOf(request, { products: "signed" });
    const { row, chosen, name: query } = startOf(request, pooledProducts, (mean, pooled) => {
      pooled.forEach((value, index) => { mean[index % tokens] += value / heads; });
      const positive = mean.map((value) => Math.max(0, value)), total = positive.reduce((sum, value) => sum + value, 0);
      mean.set(positive.map((value) => (total > 0 ? value / total : value)));
    });
    const fused = (/** @type {number} */ layer) =>
      /** @type {Float32Array} */ (products).slice(layer * tokens ** 2, (layer + 1) * tokens ** 2).map((value) => Math.max(0, value));
    const trace = /** @type {any} */ ({ tokens, fused });
    let values = Float32Array.from(propagate(trace, parameters, row, []));
    const raised = residual === 1 || hasLeft(values, chosen), subject = `Gradient rollout of ${name} for ${query}`;
    if (reference) {
      const highest = values.subarray(prefixOf(studied)).reduce((most, value) => Math.max(most, value));
      if (highest <= 0 && raised)
        throw Error(`${subject}, as ${reference} computes it: no patch is left after discarding ${100 * ratio}% of every layer.`);
      values = values.map((value) => (highest > 0 ? value / highest : value));
    }
    return { values, ...rolloutCaption(subject, `mean of ${heads} heads`, parameters), raised, self: selfOf(request) };
  },

  async legrad(request) {
    const { studied, name, parameters } = request, { start_layer: start, end_layer: end } = parameters, tokens = tokensOf(studied);
    const { depth } = studied.network.file.config;
    checkSpan(parameters, depth, false);
    const { legrad } = await gradientOf(request, { legrad: true }), values = new Float32Array(tokens);
    for (let layer = start; layer <= end; layer++)
      for (let token = 0; token < tokens; token++)
        values[token] += /** @type {Float32Array} */ (legrad)[layer * tokens + token] / (end - start + 1);
    const raised = values.some((value) => value !== 0);
    return { values, description: `LeGrad for ${name}: ${layersText(parameters)}`, quantity: "mean gradient of attention", raised };
  },

  async grad_cam(request) {
    const { studied, name, parameters: { layer } } = request, { depth } = studied.network.file.config, tokens = tokensOf(studied);
    const { gradCam } = await gradientOf(request, { gradCam: true }), first = layer * tokens + prefixOf(studied);
    const values = ofPatches(studied, (patch) => /** @type {Float32Array} */ (gradCam)[first + patch]);
    const description = `Grad-CAM for ${name}: ${numbered("layer", layer, depth)}`, raised = values.some((value) => value > 0);
    return { values, description, quantity: "activation times gradient", raised };
  },

  async integrated_gradients({ studied, name, target, parameters: { steps, signed }, report }) {
    const { network: { team, workers, file: { config, input } }, pixels, signal } = studied, nodes = legendreNodes(steps);
    const total = new Float64Array(pixels.length);
    await inLanes(workers, steps, async (step) => {
      const { node, weight } = nodes[step], scaled = pixels.map((value) => value * node);
      const { pixels: gradient } = await team.differentiate(scaled, target.differentiable, { pixels: true }, { signal });
      /** @type {Float32Array} */ (gradient).forEach((slope, index) => { total[index] += weight * slope; });
    }, report);
    const sums = new Float64Array(input.rows * input.columns), width = input.columns * config.patch_width;
    const height = input.rows * config.patch_height;
    total.forEach((slope, index) => {
      const row = Math.floor((index % (width * height)) / width / config.patch_height);
      sums[row * input.columns + Math.floor((index % width) / config.patch_width)] += slope * pixels[index];
    });
    const values = ofPatches(studied, (patch) => (signed ? sums[patch] : Math.max(0, sums[patch])));
    const description = `Integrated gradients for ${name}: ${steps} steps; ${signText(signed)}`, raised = values.some((value) => value > 0);
    return { values, description, quantity: "integrated gradient", raised, signed };
  },

  occlusion: occlusionMap,
};

/**
 * The file of a map about a class.
 * @param {StudiedPicture} studied
 * @param {string} method
 * @param {any} parameters all of them
 * @param {(done: number, total: number, unfinished?: ArrayBuffer) => void} show
 */
export async function classMapFile(studied, method, parameters, show) {
  const target = deviceTarget(parameters.target, studied.logits, studied.labels), { input } = studied.network.file;
  let shownAt = 0;
  /** @type {ClassMapRequest["report"]} */
  const report = (done, total, unfinished) => {
    const isShown = unfinished && performance.now() - shownAt > SHARPEN_MS;
    if (isShown) shownAt = performance.now();
    show(done, total, isShown ? writeMap(unfinished(), input) : undefined);
  };
  return writeMap(await CLASS_MAPS[method]({ studied, target, name: target.name, parameters, report }), input);
}
