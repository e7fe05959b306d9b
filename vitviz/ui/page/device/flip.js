// A few squares without which the answer is another one, searched for as in vitviz/metrics/flip.py, which names the sources.

import { range } from "../numbers.js";
import { bestOf, probabilitiesOf } from "./device_facts.js";
import { deviceTarget } from "./scores.js";
import { passScores, switchedOff } from "./studies.js";

// As in vitviz/metrics/flip.py; the margin is the default of the library.
const COVERED_SHARE = 0.5, FIRST_COUNT = 3, TRIAL_COUNT = 4, MOST_PASSES = 80, GRADIENT_PASSES = 3, LEAD = 0.1;

/**
 * The squares, none if half of all do not change the answer, and what the model says without those that were covered last.
 * @param {import("./studies.js").Studied} studied
 * @param {import("./studies.js").ReportStep} report
 * @returns {Promise<Flip & { passes: number }>}
 */
export async function foundFlip(studied, report) {
  const { network: { team, file: { config, input } }, labels, pixels, logits, signal } = studied, patches = input.rows * input.columns;
  const target = deviceTarget({ margin: true }, logits, labels), most = Math.floor(COVERED_SHARE * patches);
  const leadOf = (/** @type {Float32Array} */ found) => -target.score(/** @type {Float32Array} */ (probabilitiesOf(config, found)));
  let passes = 0, low = 0;
  /** @type {number[]} */
  let covered = [];
  const count = (/** @type {number} */ more) => report(passes += more, Math.max(passes, patches));
  // How far another class is ahead without each of these sets.
  const leadsWithout = (/** @type {number[][]} */ sets) => {
    count(sets.length);
    return passScores(studied, sets.length, (index) => ({ pixels, hiddenPatches: sets[index] }), leadOf, () => {});
  };
  const flips = async (/** @type {number[]} */ set) => (await leadsWithout([set]))[0] >= LEAD;
  // The patches that are not covered, those first by which another class gains most as the attention to them weakens.
  const ranking = async () => {
    count(GRADIENT_PASSES);
    const { products } = await team.differentiate(pixels, target.differentiable, { products: "keys", hiddenPatches: covered }, { signal });
    const remaining = without(range(patches), covered), prefix = input.prefix.length, sums = new Float64Array(prefix + remaining.length);
    /** @type {Float32Array} */ (products).forEach((slope, index) => { sums[index % sums.length] += slope; });
    return bestOf(sums.subarray(prefix), remaining.length).map((place) => remaining[place]);
  };
  let isFound = false;
  while (!isFound && covered.length < most) {
    low = covered.length;
    covered = [...covered, ...(await ranking()).slice(0, Math.min(Math.max(FIRST_COUNT, low), most - low))];
    isFound = await flips(covered);
  }
  if (isFound) {
    covered = covered.slice(0, 1 + await lastOf(low, covered.length, async (some) => !await flips(covered.slice(0, some))));
    // Those that were covered last are needed least.
    let untried = covered.toReversed(), leads = new Map();
    while (untried.length && passes < MOST_PASSES) {
      const set = covered, some = untried.splice(0, TRIAL_COUNT), found = await leadsWithout(some.map((patch) => without(set, [patch])));
      some.forEach((patch, index) => leads.set(patch, found[index]));
      const tried = [...leads.keys()].sort((one, other) => leads.get(other) - leads.get(one));
      const spare = tried.filter((patch) => leads.get(patch) >= LEAD);
      if (spare.length) {
        // Each alone is not needed, but together they may be.
        const given = await lastOf(1, spare.length + 1, (many) => flips(without(set, spare.slice(0, many))));
        covered = without(set, spare.slice(0, given)), untried = [...untried, ...tried.slice(given)], leads = new Map();
      }
    }
  }
  const cells = covered.toSorted((one, other) => one - other)
    .map((patch) => /** @type {Cell} */ ([Math.floor(patch / input.columns), patch % input.columns]));
  const changes = await switchedOff(studied, { heads: [], patches: cells, target: null });
  const { index, after: probability } = changes.classes.toSorted((one, other) => other.after - one.after)[0];
  return { patches: isFound ? cells : [], after: { index, probability }, changes, passes };
}

/**
 * @param {number[]} patches
 * @param {number[]} spare
 */
const without = (patches, spare) => patches.filter((patch) => !spare.includes(patch));

/**
 * A number that holds, from low on, and whose next does not, by halves; low does, and high does not.
 * @param {number} low
 * @param {number} high
 * @param {(count: number) => Promise<boolean>} holds
 */
async function lastOf(low, high, holds) {
  while (high - low > 1) {
    const middle = Math.floor((low + high) / 2);
    [low, high] = await holds(middle) ? [middle, high] : [low, middle];
  }
  return low;
}
