// Probes of a picture's attention, as vitviz/evaluation/probes/attention_probes.py and norms.py have them.

import { digits, percent, range } from "../numbers.js";
import { longNameOf, queryOf } from "../token_names.js";
import {
  medianOf, normsOfPatches, outlierPatches, outlierSentence, outlierThreshold, SINK_RATIO, sinkPatches,
} from "./token_sets.js";

/** @typedef {import("./trace.js").Trace} TraceOfProbes */
/** @typedef {{ values: Float32Array, shape: number[], axes: string[], quantity: string, names?: Record<string, string[]>,
 *   is_flag?: boolean }} Found */
/** @typedef {{ summary: string, heading: string[], rows: string[][], measurements: Record<string, Found> }} DeviceFindings */

const NAMED_SINKS = 8;

/**
 * Findings by the names of their probes.
 * @type {Record<string, (trace: TraceOfProbes) => DeviceFindings>}
 */
export const DEVICE_PROBES = {
  token_norms({ norms, tokens, shape }) {
    const { layers, prefix } = shape, steps = range(layers + 1);
    const valuesOf = (/** @type {number} */ step) => norms.subarray(step * tokens, (step + 1) * tokens);
    const rows = steps.map((step) => {
      const patches = valuesOf(step).slice(prefix.length).filter((norm) => !Number.isNaN(norm)).sort();
      const quantiles = patches.length ? [patches[0], quantileOf(patches), patches[patches.length - 1]] : [NaN, NaN, NaN];
      return [step ? `layer ${step - 1}` : "input", ...[...valuesOf(step).slice(0, prefix.length), ...quantiles].map(digits)];
    });
    const highest = highestOf(norms.map((norm) => norm || 0)), step = Math.floor(highest / tokens);
    const place = longNameOf(queryOf(highest % tokens, shape)), where = step ? `after layer ${step - 1}` : "before the first layer";
    return {
      summary: `The longest token is ${place} ${where}, with norm ${digits(norms[highest])}.`,
      heading: ["after", ...prefix, "lowest patch", "median patch", "highest patch"],
      rows,
      measurements: { norms: { values: norms, shape: [layers + 1, tokens], axes: ["step", "token"], quantity: "norm" } },
    };
  },

  outlier_patches(trace) {
    const { tokens, shape: { prefix } } = trace, found = outlierPatches(trace), norms = normsOfPatches(trace);
    const values = new Float32Array(tokens).fill(NaN), flags = new Float32Array(tokens), median = medianOf(norms);
    values.set(norms, prefix.length);
    for (const token of found) flags[token] = 1;
    const longest = [...found].sort((one, other) => values[other] - values[one]);
    const bounds = `threshold ${digits(outlierThreshold(trace))}, median ${digits(median)}, longest ${digits(Math.max(...norms))}`;
    const axes = ["token"], shape = [tokens];
    return {
      summary: `${outlierSentence(trace)} where the tokens enter the last layer: ${bounds}.`,
      heading: ["patch", "norm", "times the median"],
      rows: longest.map((token) => [tokenName(trace, token), digits(values[token]), digits(values[token] / median)]),
      measurements: {
        norm: { values, shape, axes, quantity: "norm" },
        outlier: { values: flags, shape, axes, quantity: "outlier or not", is_flag: true },
      },
    };
  },

  sink_tokens(trace) {
    const { tokens, shape: { layers, heads, prefix } } = trace;
    const shares = Float32Array.from(trace.received(), (share) => share * tokens);
    const rows = range(layers).map((layer) => {
      const ofHead = (/** @type {number} */ head) => shares.subarray((layer * heads + head) * tokens, (layer * heads + head + 1) * tokens);
      const mean = Float32Array.from({ length: tokens }, (_, token) => meanOf(range(heads).map((head) => ofHead(head)[token])));
      const token = highestOf(mean), patch = prefix.length + highestOf(mean.subarray(prefix.length));
      const head = highestOf(range(heads).map((each) => ofHead(each)[token]));
      return [String(layer), tokenName(trace, token), digits(mean[token]), String(head), tokenName(trace, patch), digits(mean[patch])];
    });
    const sinks = sinkPatches(trace).map((token) => tokenName(trace, token));
    const names = sinks.slice(0, NAMED_SINKS).join(", ") + (sinks.length > NAMED_SINKS ? ", …" : "");
    const rule = `more than ${SINK_RATIO} even shares of the attention in some layer, in the mean of its heads`;
    return {
      summary: sinks.length
        ? `${names[0].toUpperCase()}${names.slice(1)} ${sinks.length < 2 ? "receives" : "receive"} ${rule}.`
        : `No patch receives ${rule}.`,
      heading: ["layer", "most attended token", "even shares", "most by head", "most attended patch", "even shares"],
      rows,
      measurements: {
        received: {
          values: shares, shape: [layers, heads, tokens], axes: ["layer", "head", "token"], quantity: "even shares of the attention",
        },
      },
    };
  },

  sink_mass(trace) {
    const { tokens, shape: { layers, heads } } = trace, received = trace.received();
    const mass = Float32Array.from({ length: layers * heads }, (_, row) => {
      const shares = received.subarray(row * tokens, (row + 1) * tokens);
      return shares.reduce((sum, share) => sum + (share * tokens > SINK_RATIO ? share : 0), 0);
    });
    return ofHeads(trace, "mass", mass, "send most attention to sinks", "share",
      `No head has a sink: no token receives more than ${SINK_RATIO} even shares of its attention.`);
  },

  prefix_mass(trace) {
    const { tokens, shape: { layers, heads, prefix } } = trace, received = trace.received(prefix.length), count = prefix.length;
    const mass = Float32Array.from({ length: layers * heads * count }, (_, index) =>
      received[Math.floor(index / count) * tokens + index % count]);
    const rowOf = (/** @type {number} */ row) => [...mass.subarray(row * count, (row + 1) * count)];
    const sums = range(layers * heads).map((row) => rowOf(row).reduce((sum, value) => sum + value, 0)), most = highestOf(sums);
    return {
      summary: `Head ${most % heads} of layer ${Math.floor(most / heads)} sends most, ${digits(sums[most])} of the patches' ` +
        "attention, to prefix tokens.",
      heading: ["layer", ...prefix, "all of them"],
      rows: range(layers).map((layer) => {
        const own = range(heads).map((head) => layer * heads + head);
        const means = prefix.map((_, place) => meanOf(own.map((row) => rowOf(row)[place])));
        return [String(layer), ...means.map(digits), digits(meanOf(own.map((row) => sums[row])))];
      }),
      measurements: {
        mass: { values: mass, shape: [layers, heads, count], axes: ["layer", "head", "prefix"], quantity: "share", names: { prefix } },
      },
    };
  },

  attention_distance(trace) {
    const { tokens, shape: { prefix, columns } } = trace, first = prefix.length, weights = new Float32Array(tokens);
    const cellOf = (/** @type {number} */ token) => [Math.floor((token - first) / columns), (token - first) % columns];
    const distance = eachHead(trace, (layer, head) => {
      let total = 0, patches = 0;
      for (let query = first; query < tokens; query++) {
        trace.row(layer, head, query, weights);
        const [row, column] = cellOf(query);
        let sum = 0, share = 0;
        for (let key = first; key < tokens; key++) {
          const [otherRow, otherColumn] = cellOf(key);
          sum += weights[key] * Math.hypot(otherRow - row, otherColumn - column);
          share += weights[key];
        }
        if (share > 0) total += sum / share;
        patches += share > 0 ? 1 : 0;
      }
      return total / patches;
    });
    return ofHeads(trace, "distance", distance, "look farthest", "patches");
  },

  attention_entropy(trace) {
    const { tokens, shape: { prefix } } = trace, weights = new Float32Array(tokens);
    const entropy = eachHead(trace, (layer, head) => {
      let total = 0;
      for (let query = prefix.length; query < tokens; query++) {
        trace.row(layer, head, query, weights);
        total += entropyOf(weights);
      }
      return total / (tokens - prefix.length);
    });
    return ofHeads(trace, "entropy", entropy, "look most widely", "nats");
  },

  head_similarity(trace) {
    const { tokens, shape: { layers, heads } } = trace, rows = range(heads).map(() => new Float32Array(tokens));
    const divergence = new Float64Array(layers * heads * heads), mixed = new Float32Array(tokens);
    for (let layer = 0; layer < layers; layer++)
      for (let query = 0; query < tokens; query++) {
        for (const head of range(heads)) trace.row(layer, head, query, rows[head]);
        const entropies = rows.map(entropyOf);
        for (const [one, other] of pairsOf(heads)) {
          for (let key = 0; key < tokens; key++) mixed[key] = (rows[one][key] + rows[other][key]) / 2;
          const distance = (entropyOf(mixed) - (entropies[one] + entropies[other]) / 2) / (tokens * Math.LN2);
          divergence[(layer * heads + one) * heads + other] += distance;
          divergence[(layer * heads + other) * heads + one] += distance;
        }
      }
    // Rounding may push values slightly below zero.
    const values = Float32Array.from(divergence, (value) => Math.min(Math.max(value, 0), 1)), pairs = pairsOf(heads);
    const means = range(layers).map((layer) => {
      const own = values.subarray(layer * heads * heads, (layer + 1) * heads * heads);
      return own.reduce((sum, value) => sum + value, 0) / (heads * (heads - 1));
    });
    const most = highestOf(means.map((mean) => -mean));
    return {
      summary: `The heads of layer ${most} are most alike, on average ${digits(means[most])} apart.`,
      heading: ["layer", "most alike", "apart", "mean apart", "least alike", "apart"],
      rows: range(layers).map((layer) => {
        const apart = pairs.map(([one, other]) => values[(layer * heads + one) * heads + other]);
        const near = highestOf(apart.map((each) => -each)), far = highestOf(apart);
        const [nearest, farthest] = [near, far].map((pair) => [pairs[pair].join(" and "), digits(apart[pair])]);
        return [String(layer), ...nearest, digits(meanOf(apart)), ...farthest];
      }),
      measurements: {
        divergence: {
          values, shape: [layers, heads, heads], axes: ["layer", "head", "other head"], quantity: "Jensen-Shannon divergence",
        },
      },
    };
  },
};

/** @param {ArrayLike<number>} values */
const meanOf = (values) => Array.from(values).reduce((sum, value) => sum + value, 0) / values.length;

/**
 * The median of ascending values, between the two in the middle.
 * @param {Float32Array} ascending
 */
const quantileOf = (ascending) =>
  (ascending[Math.floor((ascending.length - 1) / 2)] + ascending[Math.ceil((ascending.length - 1) / 2)]) / 2;

/** @param {ArrayLike<number>} values */
const highestOf = (values) => Array.from(values).reduce((best, value, index) => (value > values[best] ? index : best), 0);

/** @param {Float32Array} weights */
function entropyOf(weights) {
  let sum = 0;
  for (const weight of weights) if (weight > 0) sum -= weight * Math.log(weight);
  return sum;
}

/**
 * Every two of so many, the lower one first.
 * @param {number} count
 */
const pairsOf = (count) => range(count).flatMap((one) => range(count).slice(one + 1).map((other) => [one, other]));

/**
 * @param {TraceOfProbes} trace
 * @param {number} token
 */
const tokenName = ({ shape }, token) => longNameOf(queryOf(token, shape));

/**
 * A number of each head, "layer head".
 * @param {TraceOfProbes} trace
 * @param {(layer: number, head: number) => number} measure
 */
const eachHead = ({ shape: { layers, heads } }, measure) =>
  Float32Array.from({ length: layers * heads }, (_, row) => measure(Math.floor(row / heads), row % heads));

/**
 * The findings of one number for each head.
 * @param {TraceOfProbes} trace
 * @param {string} name
 * @param {Float32Array} values "layer head"; NaN where there is none
 * @param {string} verb
 * @param {string} unit
 * @param {string} ifZero the summary where all are 0
 * @returns {DeviceFindings}
 */
function ofHeads({ shape: { layers, heads } }, name, values, verb, unit, ifZero = "") {
  const ofLayer = (/** @type {number} */ layer) =>
    [...values.subarray(layer * heads, (layer + 1) * heads)].filter((value) => !Number.isNaN(value));
  const means = range(layers).map((layer) => (ofLayer(layer).length ? meanOf(ofLayer(layer)) : 0)), best = highestOf(means);
  const amount = unit === "share" ? percent(means[best]) : `${digits(means[best])} ${unit}`;
  return {
    summary: means[best] || !ifZero ? `The heads of layer ${best} ${verb}, on average ${amount}.` : ifZero,
    heading: ["layer", "lowest head", `mean, in ${unit}`, "highest head"],
    rows: range(layers).map((layer) => {
      const own = ofLayer(layer);
      return [String(layer), ...(own.length ? [Math.min(...own), meanOf(own), Math.max(...own)].map(digits) : ["–", "–", "–"])];
    }),
    measurements: { [name]: { values, shape: [layers, heads], axes: ["layer", "head"], quantity: unit } },
  };
}
