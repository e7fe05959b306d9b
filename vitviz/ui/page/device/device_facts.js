// What the page is told of an analysis on the device, as vitviz/ui/facts.py writes it.

import { digits } from "../numbers.js";
import { OUTLIER_RULE } from "./token_sets.js";

const MAX_PREDICTED = 5;

/**
 * The probability of each class, by the function of the network; null for a regression.
 * @type {Record<string, ((logits: Float32Array) => Float32Array) | null>}
 */
const PROBABILITIES = {
  softmax(logits) {
    const highest = Math.max(...logits), powers = Float64Array.from(logits, (logit) => Math.exp(logit - highest));
    const sum = powers.reduce((total, power) => total + power, 0);
    return Float32Array.from(powers, (power) => power / sum);
  },
  sigmoid: (logits) => logits.map((logit) => 1 / (1 + Math.exp(-logit))),
  identity: (logits) => logits,
  none: null,
};

/**
 * The probability of each class; null if the network gives none.
 * @param {NetworkConfig} config
 * @param {Float32Array} logits
 */
export function probabilitiesOf(config, logits) {
  const compute = config.classes ? PROBABILITIES[config.probability] : null;
  return compute ? compute(logits) : null;
}

/**
 * The indexes of the highest values, best first.
 * @param {Float32Array | Float64Array} values
 * @param {number} count
 */
export const bestOf = (values, count) => [...values.keys()].sort((one, other) => values[other] - values[one]).slice(0, count);

/**
 * What is said of a far look; of some, what a person sees in them.
 * @param {any} look
 * @param {string} name of the picture
 * @param {DeviceStart} device
 */
function findingOf({ layer, head, query, share }, name, { findings }) {
  const known = findings.find(([place]) => place === [name, layer, head, ...query].join(" ")) ?? findings[0];
  return known[1].replace("{}", `${Math.round(100 * share)}%`);
}

/**
 * @param {{ uid: string, view: View, name: string, address: string, file: DeviceFile, prepared: any, encoding: Encoding,
 *   found: any, device: DeviceStart }} options
 * @returns {Facts}
 */
export function deviceFacts({ uid, view, name, address, file, prepared, encoding, found, device }) {
  const { config, input } = file, { card } = encoding, { width, height, pixelSize, box } = prepared;
  const probabilities = probabilitiesOf(config, encoding.logits), [across, down] = [width / pixelSize[0], height / pixelSize[1]];
  const { patches, sentence, threshold, look } = found, { rolls, flips } = device.models[view.model];
  return {
    uid,
    model: view.model,
    name,
    picture: address,
    step: null,
    fit: view.fit ?? file.preprocessing.fit,
    resolution: Math.min(input.rows * config.patch_height, input.columns * config.patch_width),
    width,
    height,
    pixels: pixelSize,
    box: [box[0] * across, box[1] * down, box[2] * across, box[3] * down],
    layers: config.depth,
    heads: config.heads,
    rows: input.rows,
    columns: input.columns,
    prefix: input.prefix,
    windows: [],
    start: input.prefix.length ? 0 : Math.floor(input.rows / 2) * input.columns + Math.floor(input.columns / 2),
    rolls,
    predictions: probabilities
      ? bestOf(probabilities, MAX_PREDICTED).map((index) => ({ index, probability: probabilities[index] }))
      : [],
    outliers: {
      patches,
      about: `${sentence}: norm above ${digits(threshold)} where the tokens enter the last layer (${OUTLIER_RULE}).`,
    },
    look: look?.share >= device.least_share ? { ...look, sentence: findingOf(look, name, device) } : null,
    flips,
    clip: null,
    assumptions: "",
    engine: card ? `WebGPU (${card})` : "WebAssembly",
    dark: null,
    is_converted: false,
  };
}
