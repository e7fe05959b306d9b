// The patch that gives most of its attention to one compact place far from it, as vitviz/attribution/far_look.py finds it.

import { range } from "../numbers.js";
import { medianOf } from "./token_sets.js";

const FAR = 1 / 3, PLAIN_CONTRAST = 0.5;
// Below this variance, all that differs is rounding.
const ONE_COLOUR = 1e-10;
// On larger grids, only some rows and columns of patches ask.
const MOST_QUERIES = 400;

/**
 * Sums over the 3 × 3 patches around each, without what lies beyond the edges.
 * @param {Numbers} values "patch"
 * @param {number} rows
 * @param {number} columns
 */
function sumsAround(values, rows, columns) {
  const across = new Float64Array(values.length), sums = new Float64Array(values.length);
  for (let patch = 0; patch < values.length; patch++) {
    const column = patch % columns;
    across[patch] = values[patch] + (column ? values[patch - 1] : 0) + (column + 1 < columns ? values[patch + 1] : 0);
  }
  for (let patch = 0; patch < values.length; patch++)
    sums[patch] = across[patch] + (across[patch - columns] ?? 0) + (across[patch + columns] ?? 0);
  return sums;
}

/**
 * How much a picture varies around each patch, "patch", in [0, 1].
 * @param {Float32Array} pixels "channel height width"
 * @param {{ rows: number, columns: number, height: number, width: number }} grid of the patches, and the size of one
 */
export function patchContrasts(pixels, { rows, columns, height, width }) {
  const count = rows * columns, plane = count * height * width, channels = pixels.length / plane;
  const counts = sumsAround(new Float32Array(count).fill(1), rows, columns), variances = new Float32Array(count);
  let whole = 0;
  for (const channel of range(channels)) {
    const means = new Float64Array(count), squares = new Float64Array(count), area = height * width;
    for (let at = 0; at < plane; at++) {
      const value = pixels[channel * plane + at], row = Math.floor(at / (columns * width)), column = at % (columns * width);
      const patch = Math.floor(row / height) * columns + Math.floor(column / width);
      means[patch] += value / area;
      squares[patch] += value * value / area;
    }
    const mean = means.reduce((sum, value) => sum + value / count, 0);
    whole += (squares.reduce((sum, value) => sum + value / count, 0) - mean * mean) / channels;
    const [around, squaresAround] = [means, squares].map((values) => sumsAround(values, rows, columns));
    for (let patch = 0; patch < count; patch++)
      variances[patch] += Math.max(0, squaresAround[patch] / counts[patch] - (around[patch] / counts[patch]) ** 2) / channels;
  }
  // Of a picture of one colour, no place is plainer than another.
  return variances.map((variance) => (whole < ONE_COLOUR ? 1 : Math.min(1, Math.sqrt(variance / whole) / PLAIN_CONTRAST)));
}

/**
 * The first of all layers and heads; null where no place is far enough.
 * @param {import("./trace.js").Trace} trace
 * @param {Float32Array} contrast "patch"
 */
export function farLookOf(trace, contrast) {
  const { tokens, shape: { layers, heads, rows, columns, prefix } } = trace, count = rows * columns;
  const step = Math.ceil(Math.sqrt(count / MOST_QUERIES)), first = prefix.length, weights = new Float32Array(tokens);
  const cellOf = (/** @type {number} */ patch) => [Math.floor(patch / columns), patch % columns];
  const asking = range(count).filter((patch) => cellOf(patch).every((place) => place % step === Math.floor(step / 2)));
  const importance = asking.map((query) => contrast.map((value, key) => {
    const [[row, column], [otherRow, otherColumn]] = [query, key].map(cellOf);
    return Math.hypot((row - otherRow) / rows, (column - otherColumn) / columns) >= FAR ? contrast[query] * value : 0;
  }));
  let best = null, highest = 0;
  for (const layer of range(layers)) for (const head of range(heads)) {
    const shares = asking.map((query) => {
      trace.row(layer, head, first + query, weights);
      return sumsAround(weights.slice(first), rows, columns);
    });
    // A bound of what is left after the median, which takes most of the time.
    if (!shares.some((row, query) => row.some((share, key) => share * importance[query][key] > highest))) continue;
    const medians = range(count).map((key) => medianOf(Float32Array.from(shares, (row) => row[key])));
    for (const [query, row] of shares.entries()) for (const [key, share] of row.entries()) {
      const excess = share - medians[key], score = excess * importance[query][key];
      if (score <= highest) continue;
      highest = score;
      best = { layer, head, query: cellOf(asking[query]), place: cellOf(key), share, excess };
    }
  }
  return best;
}
