// Maps about a class from gradients of the network, with the captions of the library: relevance, gradient rollout, Grad-CAM,
// LeGrad and integrated gradients.

import { digits } from "../numbers.js";
import { longNameOf, numbered } from "../token_names.js";
import { writePack } from "./pack_writer.js";
import { propagate } from "./rollouts.js";
import { deviceTarget } from "./scores.js";
import { tokensOfQuery } from "./token_sets.js";

const NOTHING_RAISES = "By this method, nothing raises this score";

/** @typedef {import("./studies.js").Studied} StudiedPicture */
/** @typedef {{ values: Float32Array, description: string, quantity: string, raised: boolean, self?: number }} ClassMap */
/**
 * @typedef {{ studied: StudiedPicture, name: string, target: ScoreTarget, parameters: any, report: (done: number, total: number) => void }}
 *   ClassMapRequest
 */

/** @param {StudiedPicture} studied */
const prefixOf = ({ network: { file: { input } } }) => input.prefix.length;
/** @param {StudiedPicture} studied */
const tokensOf = ({ network: { file: { input } } }) => input.prefix.length + input.rows * input.columns;

/**
 * @param {number} start
 * @param {number} end
 */
const layersText = (start, end) => (end > start ? `layers ${start} to ${end}` : `layer ${start}`);

/**
 * The gradients of a score of the picture.
 * @param {ClassMapRequest} request
 * @param {GradientWants} wants
 */
const gradientOf = ({ studied: { network, pixels, signal }, target, report }, wants) =>
  network.team.differentiate(pixels, target, wants, { signal }, report);

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
function startOf({ studied, parameters: { query, start_layer: start, end_layer: end } }, pooled, fuse) {
  const { config: { depth }, input } = studied.network.file, tokens = tokensOf(studied), row = new Float64Array(tokens);
  if (end < start) throw Error(`end_layer ${end}: below the start layer, ${start}; expected a layer from ${start} to ${depth - 1}.`);
  if (pooled && (query ?? null) === null) {
    if (end < depth - 1)
      throw Error(`end_layer = ${end}: the pooling query, with which this map begins, reads the last layer, ${depth - 1}.`);
    fuse(row, pooled);
    return { row, chosen: Array.from({ length: tokens }, (_, token) => token), name: "the pooling query" };
  }
  const chosen = tokensOfQuery(input, query);
  for (const token of chosen) row[token] = 1 / chosen.length;
  return { row, chosen, name: longNameOf(query ?? (input.prefix.includes("cls") ? "cls" : "patches")) };
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
 * @type {Record<string, (request: ClassMapRequest) => Promise<ClassMap>>}
 */
export const CLASS_MAPS = {
  async relevance(request) {
    const { studied, name, parameters: { start_layer: start, end_layer: end } } = request, { heads } = studied.network.file.config;
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
    const description = `Relevance for ${name} as ${query} sees it: ${layersText(start, end)}`, raised = hasLeft(values, chosen);
    return { values: Float32Array.from(values), description, quantity: "relevance", raised, self: selfOf(request) };
  },

  async gradient_rollout(request) {
    const { studied, name, parameters } = request, { heads } = studied.network.file.config, tokens = tokensOf(studied);
    const { start_layer: start, end_layer: end, reference, discard_ratio: ratio, residual_weight: residual } = parameters;
    checkReference(request);
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
    const settings = [
      `mean of ${heads} heads`, `residual ${residual}`,
      ...(ratio > 0 ? [`lowest ${Number((100 * ratio).toPrecision(6))}% discarded`] : []), layersText(start, end),
    ];
    const description = `${subject}${reference ? `, as ${reference} computes it` : ""}: ${settings.join(", ")}`;
    const quantity = reference ? "share relative to the highest patch" : "share of the rollout";
    return { values, description, quantity, raised, self: selfOf(request) };
  },

  async legrad(request) {
    const { studied, name, parameters: { start_layer: start, end_layer: end } } = request, tokens = tokensOf(studied);
    const { depth } = studied.network.file.config;
    if (end < start) throw Error(`end_layer ${end}: below the start layer, ${start}; expected a layer from ${start} to ${depth - 1}.`);
    const { legrad } = await gradientOf(request, { legrad: true }), values = new Float32Array(tokens);
    for (let layer = start; layer <= end; layer++)
      for (let token = 0; token < tokens; token++)
        values[token] += /** @type {Float32Array} */ (legrad)[layer * tokens + token] / (end - start + 1);
    const raised = values.some((value) => value !== 0);
    return { values, description: `LeGrad for ${name}: ${layersText(start, end)}`, quantity: "mean gradient of attention", raised };
  },

  async grad_cam(request) {
    const { studied, name, parameters: { layer } } = request, { depth } = studied.network.file.config, tokens = tokensOf(studied);
    const { gradCam } = await gradientOf(request, { gradCam: true }), first = layer * tokens + prefixOf(studied);
    const values = ofPatches(studied, (patch) => /** @type {Float32Array} */ (gradCam)[first + patch]);
    const description = `Grad-CAM for ${name}: ${numbered("layer", layer, depth)}`, raised = values.some((value) => value > 0);
    return { values, description, quantity: "activation times gradient", raised };
  },

  async integrated_gradients({ studied, name, target, parameters: { steps }, report }) {
    const { network: { team, workers, file: { config, input } }, pixels, signal } = studied, nodes = legendreNodes(steps);
    const total = new Float64Array(pixels.length);
    let next = 0, done = 0;
    const lane = async () => {
      while (next < steps) {
        const { node, weight } = nodes[next++], scaled = pixels.map((value) => value * node);
        const { pixels: gradient } = await team.differentiate(scaled, target, { pixels: true }, { signal });
        /** @type {Float32Array} */ (gradient).forEach((slope, index) => { total[index] += weight * slope; });
        report(++done, steps);
      }
    };
    await Promise.all(Array.from({ length: workers }, lane));
    const sums = new Float64Array(input.rows * input.columns), width = input.columns * config.patch_width;
    const height = input.rows * config.patch_height;
    total.forEach((slope, index) => {
      const row = Math.floor((index % (width * height)) / width / config.patch_height);
      sums[row * input.columns + Math.floor((index % width) / config.patch_width)] += slope * pixels[index];
    });
    const values = ofPatches(studied, (patch) => Math.max(0, sums[patch])), raised = values.some((value) => value > 0);
    return { values, description: `Integrated gradients for ${name}: ${steps} steps`, quantity: "integrated gradient", raised };
  },
};

/**
 * Refuse what a reference does not know.
 * @param {ClassMapRequest} request
 */
function checkReference({ studied, parameters }) {
  const { config: { depth }, input: { prefix } } = studied.network.file;
  const { start_layer: start, end_layer: end, reference, residual_weight: residual } = parameters;
  if (!reference) return;
  if (residual !== 0.5 || start !== 0)
    throw Error(`residual_weight = ${residual} and start_layer = ${start}: ${reference} knows only 0.5 and 0.`);
  if (end !== depth - 1) throw Error(`end_layer = ${end}: ${reference} knows only the last layer, -1.`);
  if (!prefix.includes("cls")) throw Error(`This model has no CLS token, which ${reference} takes for granted.`);
}

/**
 * The file of a map about a class.
 * @param {StudiedPicture} studied
 * @param {string} method
 * @param {any} parameters all of them
 * @param {(done: number, total: number) => void} report
 */
export async function classMapFile(studied, method, parameters, report) {
  const { labels, logits } = studied, { name, differentiable: target } = deviceTarget(parameters.target, logits, labels);
  const { values, description, quantity, raised, self } = await CLASS_MAPS[method]({ studied, name, target, parameters, report });
  const patches = values.subarray(prefixOf(studied)), isFlat = patches.length > 1 && patches.every((value) => value === patches[0]);
  const nothing = isFlat ? NOTHING_RAISES.replace("By", "by") : NOTHING_RAISES;
  const remarks = [...(isFlat ? [`Every patch is ${digits(patches[0])}`] : []), ...(raised ? [] : [nothing])].join(": ");
  const own = self === undefined ? "" : `; ${longNameOf(parameters.query)} itself is excluded from the colour range (residual identity)`;
  const metadata = { description: `${description}${remarks && `. ${remarks}`}${own}`, quantity };
  return writePack({ values: { values, shape: [values.length] } }, self === undefined ? metadata : { ...metadata, self: String(self) });
}
