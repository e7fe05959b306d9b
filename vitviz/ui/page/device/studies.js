// Studies that run the network again: what is switched off, and heads one by one.

import { bestOf, probabilitiesOf } from "./device_facts.js";
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
  const after = (await team.encode(pixels, options)).logits, isClass = typeof (target ?? 0) === "number";
  const [was, now] = [logits, after].map((each) => probabilitiesOf(config, each) ?? each);
  const best = [...bestOf(was, MAX_ROWS), ...bestOf(now, MAX_ROWS), ...(typeof target === "number" ? [target] : [])];
  const classes = [...new Set(best)].filter((index) => index < labels.length)
    .map((index) => ({ name: labels[index], index, before: was[index], after: now[index] }));
  const unit = isClass ? unitOf(config) : "score", { name, score } = deviceTarget(isClass ? null : target, logits, labels);
  const rows = isClass ? classes : [{ name, before: score(logits), after: score(after) }];
  return { unit, rows, classes: probabilitiesOf(config, logits) ? classes : [] };
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
  const scores = await passScores(studied, depth * heads, (index) => ({
    pixels, headFactors: factorsWithout(config, [[Math.floor(index / heads), index % heads]]),
  }), score, report);
  const drops = Array.from({ length: depth }, (_, layer) =>
    scores.slice(layer * heads, (layer + 1) * heads).map((value) => whole - value));
  const { index, name } = chosen;
  return { target: index, target_name: index === null ? name : labels[index], unit: index === null ? "score" : unitOf(config), drops };
}

/**
 * Does something for every number below `count`, as often at once as there are workers; a failure ends it.
 * @param {number} workers
 * @param {number} count
 * @param {(index: number) => Promise<void>} act
 * @param {ReportStep} report
 */
export async function inLanes(workers, count, act, report) {
  let next = 0, done = 0;
  const lane = async () => {
    while (next < count) {
      await act(next++).catch((error) => {
        next = count;
        throw error;
      });
      report(++done, count);
    }
  };
  await Promise.all(Array.from({ length: workers }, lane));
}

/**
 * A score of many passes.
 * @param {Studied} studied
 * @param {number} count
 * @param {(index: number) => { pixels: Float32Array } & EncodeOptions} inputOf
 * @param {(logits: Float32Array) => number} score
 * @param {ReportStep} report
 */
export async function passScores({ network: { team, workers }, signal }, count, inputOf, score, report) {
  const scores = Array(count).fill(0);
  await inLanes(workers, count, async (index) => {
    const { pixels, ...options } = inputOf(index);
    scores[index] = score((await team.encode(pixels, { ...options, logitsOnly: true, apart: count > 1, signal })).logits);
  }, report);
  return scores;
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
