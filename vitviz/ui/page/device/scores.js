// The scores of a target, as vitviz/models/targets.py has them.

import { bestOf, probabilitiesOf } from "./device_facts.js";

/**
 * @typedef {{ name: string, index: number | null, score: (logits: Float32Array) => number, differentiable: ScoreTarget }}
 *   DeviceTarget `differentiable` is the same score for a backward pass
 */

/**
 * What a map or a measure is about: a class, or a difference of classes.
 * @param {Target} target
 * @param {Float32Array} logits of the whole picture
 * @param {string[]} labels
 * @returns {DeviceTarget}
 */
export function deviceTarget(target, logits, labels) {
  const [best] = bestOf(logits, 1), classOf = (/** @type {number} */ index) => `class ${labels[index]?.replace(/^class /, "") ?? index}`;
  if (typeof target !== "object" || target === null) {
    const index = target ?? best;
    return { name: classOf(index), index, score: (values) => values[index], differentiable: { index } };
  }
  const first = target.class ?? best, second = target.against;
  if (second !== undefined) {
    if (first === second) throw Error(`Contrast of ${classOf(first)} with itself: choose two classes.`);
    const name = `${classOf(first)} against ${classOf(second)}`, differentiable = { index: first, against: second };
    return { name, index: null, score: (values) => values[first] - values[second], differentiable };
  }
  if (logits.length < 2) throw Error(`Margin of ${classOf(first)}: this model has no other class.`);
  return {
    name: `${classOf(first)} against the best of the others`,
    index: null,
    score: (values) => values[first] - Math.max(...values.filter((_, index) => index !== first)),
    differentiable: { index: first, margin: true },
  };
}

/**
 * The score in which an effect on a target is measured: a class's probability, or else the target's own.
 * @param {NetworkConfig} config
 * @param {DeviceTarget} target
 */
export function effectScore(config, { index, score }) {
  const hasProbability = index !== null && probabilitiesOf(config, new Float32Array(config.classes)) !== null;
  if (!hasProbability) return score;
  return (/** @type {Float32Array} */ logits) => /** @type {Float32Array} */ (probabilitiesOf(config, logits))[index];
}
