// Studies that run the network many times: what is switched off, heads one by one, patches one by one.

import { bestOf, probabilitiesOf } from "./device_facts.js";
import { copyPatch } from "./device_file.js";
import { writeMap } from "./pack_writer.js";
import { deviceTarget, effectScore } from "./scores.js";

const MAX_ROWS = 5;

/**
 * One picture and its network; the signal ends its passes.
 * @typedef {{ network: import("./networks.js").OpenNetwork, labels: string[], pixels: Float32Array, logits: Float32Array,
 *   signal: AbortSignal }} Studied
 */
/** @typedef {(done: number, total: number) => void} ReportStep */

/**
 * The output without some heads and patches, as `_switched` of vitviz/ui/studies.py.
 * @param {Studied} studied
 * @param {{ heads: [number, number][], patches: Cell[], target: Target }} request
 */
export async function switchedOff(studied, { heads, patches, target }) {
  const { network: { team, file: { config, input } }, labels, pixels, logits, signal } = studied;
  const options = {
    headFactors: factorsWithout(config, heads),
    hiddenPatches: patches.map(([row, column]) => row * input.columns + column),
    logitsOnly: true,
    signal,
  };
  const after = (await team.encode(pixels, options)).logits, asked = target ?? null;
  if (typeof asked === "object" && asked !== null) {
    const { name, score } = deviceTarget(asked, logits, labels);
    return { unit: "score", rows: [{ name, before: score(logits), after: score(after) }] };
  }
  const [was, now] = [logits, after].map((each) => probabilitiesOf(config, each) ?? each);
  const best = [...bestOf(was, MAX_ROWS), ...bestOf(now, MAX_ROWS), ...(asked === null ? [] : [asked])];
  const rows = [...new Set(best)].filter((index) => index < labels.length)
    .map((index) => ({ name: labels[index], index, before: was[index], after: now[index] }));
  return { unit: unitOf(config), rows };
}

/**
 * How far a score falls without each head, "layer head".
 * @param {Studied} studied
 * @param {Target} target
 * @param {ReportStep} report
 */
export async function rankedHeads(studied, target, report) {
  const { network: { file: { config } }, labels, pixels, logits } = studied, chosen = deviceTarget(target, logits, labels);
  const score = effectScore(config, chosen), whole = score(logits), { depth, heads } = config;
  const scores = await passes(studied, depth * heads, (index) => ({
    pixels, headFactors: factorsWithout(config, [[Math.floor(index / heads), index % heads]]),
  }), score, report);
  const drops = Array.from({ length: depth }, (_, layer) =>
    scores.slice(layer * heads, (layer + 1) * heads).map((value) => whole - value));
  const { index, name } = chosen;
  return { target: index, target_name: index === null ? name : labels[index], unit: index === null ? "score" : unitOf(config), drops };
}

/**
 * The file of the map of occlusion: how far the score falls when the mean training colour replaces each patch.
 * @param {Studied} studied
 * @param {Target} target
 * @param {ReportStep} report
 */
export async function occlusionFile(studied, target, report) {
  const { network: { file: { config, input } }, labels, pixels, logits } = studied, { name, score } = deviceTarget(target, logits, labels);
  const values = new Float32Array(input.prefix.length + input.rows * input.columns).fill(NaN, 0, input.prefix.length);
  const count = input.rows * input.columns;
  const scores = await passes(studied, count, (patch) => ({ pixels: withoutPatch(pixels, config, input, patch) }), score, report);
  scores.forEach((value, patch) => { values[input.prefix.length + patch] = Math.max(0, score(logits) - value); });
  const description = `Occlusion for ${name}: one patch at a time`;
  const reason = "by this method, nothing raises this score";
  return writeMap(values, { description, quantity: "fall of the score" }, input.prefix.length, reason);
}

/**
 * A score of many passes; as many run at once as there are workers.
 * @param {Studied} studied
 * @param {number} count
 * @param {(index: number) => { pixels: Float32Array, headFactors?: Float32Array }} inputOf
 * @param {(logits: Float32Array) => number} score
 * @param {ReportStep} report
 */
async function passes({ network: { team, workers }, signal }, count, inputOf, score, report) {
  const scores = Array(count).fill(0);
  let next = 0, done = 0;
  const lane = async () => {
    while (next < count) {
      const index = next++, { pixels, ...options } = inputOf(index);
      scores[index] = score((await team.encode(pixels, { ...options, logitsOnly: true, apart: true, signal })).logits);
      report(++done, count);
    }
  };
  await Promise.all(Array.from({ length: workers }, lane));
  return scores;
}

/**
 * @param {Float32Array} pixels "channel height width"
 * @param {NetworkConfig} config
 * @param {NetworkInput} input
 * @param {number} patch
 */
function withoutPatch(pixels, config, input, patch) {
  const occluded = pixels.slice(), grey = new Float32Array(config.channels * config.patch_height * config.patch_width);
  copyPatch(occluded, config, input, patch, grey, true);
  return occluded;
}

/**
 * The factor of each head, "layer head": 0 for those that are off.
 * @param {NetworkConfig} config
 * @param {[number, number][]} heads
 */
function factorsWithout(config, heads) {
  const factors = new Float32Array(config.depth * config.heads).fill(1);
  for (const [layer, head] of heads) factors[layer * config.heads + head] = 0;
  return factors;
}

/** @param {NetworkConfig} config */
const unitOf = (config) => (config.probability === "none" ? "score" : "probability");
