// What squares of pictures have in common, as vitviz/features computes it: colours of their components, cosines, and mutual matches.

import { products } from "./attention.js";
import { clamped, range, sum } from "./numbers.js";

/**
 * Vectors "patch channel" of length 1, and the patches that are no outliers.
 * @typedef {{ vectors: Tensor, inliers: number[] }} Squares
 */
/** @typedef {{ mean: Float64Array, directions: Float32Array[], ends: number[][], share: number }} Basis */
/** Lets the page answer meanwhile. @typedef {() => Promise<void>} Pause */

// The components that have colours, passes over all squares by which they are sought, and how often a small matrix is squared.
const COMPONENTS = 3, PASSES = 24, SQUARINGS = 14;
// What is left of a vector of 32 bits, or of the variance of a square, where there is nothing but rounding.
const NOTHING = 1e-5, NO_VARIANCE = 1e-12;
// As in vitviz/features/basis.py and colour_maps.py.
const ENDS = [0.01, 0.99], LEAST_SPAN = 1e-6, DARKEST = 0.42, LIGHTEST = 0.86, HUES = [0.42, 0.4];
const CONES = [[1, 0.3963377774, 0.2158037573], [1, -0.1055613458, -0.0638541728], [1, -0.0894841775, -1.291485548]];
const LINEAR = [
  [4.0767416621, -3.3077115913, 0.2309699292],
  [-1.2684380046, 2.6097574011, -0.3413193965],
  [-0.0041960863, -0.7034186147, 1.707614701],
];

/**
 * @param {ArrayLike<number>} one
 * @param {ArrayLike<number>} other
 */
function dot(one, other) {
  let total = 0;
  for (let index = 0; index < one.length; index++) total += one[index] * other[index];
  return total;
}

/**
 * Add a multiple of a vector to another one.
 * @template {Float32Array | Float64Array} Vector
 * @param {Vector} target
 * @param {ArrayLike<number>} vector
 * @param {number} times
 */
function add(target, vector, times) {
  for (let index = 0; index < target.length; index++) target[index] += times * vector[index];
  return target;
}

/**
 * The leading eigenvectors of a small symmetric matrix without negative eigenvalues: its high powers have no other rows.
 * @param {number[][]} matrix
 * @returns {number[][]}
 */
function leading(matrix, count = COMPONENTS) {
  if (!count || !matrix.length) return [];
  let power = matrix;
  for (const _ of range(SQUARINGS)) {
    const trace = sum(power.map((row, index) => row[index])) || 1;
    power = power.map((row) => power.map((other) => dot(row, other) / trace ** 2));
  }
  const row = power.reduce((most, each) => (dot(each, each) > dot(most, most) ? each : most)), length = Math.sqrt(dot(row, row)) || 1;
  const vector = row.map((value) => value / length), value = dot(vector, matrix.map((each) => dot(each, vector)));
  const rest = matrix.map((each, index) => each.map((old, other) => old - value * vector[index] * vector[other]));
  return [vector, ...leading(rest, count - 1)];
}

/**
 * The vector of a patch.
 * @param {Tensor} vectors
 * @param {number} patch
 */
const vectorOf = (vectors, patch) => vectors.subarray(patch * vectors.shape[1], (patch + 1) * vectors.shape[1]);

/**
 * A value of which a share of the others is lower.
 * @param {Float32Array} values
 * @param {number} share
 */
function percentile(values, share) {
  const sorted = values.slice().sort(), place = share * (sorted.length - 1), lower = Math.floor(place);
  return sorted[lower] + (place - lower) * (sorted[Math.ceil(place)] - sorted[lower]);
}

/**
 * One basis of the squares of several pictures, and the share of their variance that it holds.
 *
 * By the method of Lanczos 1950, "An iteration method for the solution of the eigenvalue problem", each vector orthogonal to all before.
 * @param {Squares[]} pictures
 * @param {Pause} pause
 * @returns {Promise<Basis>}
 */
export async function basisOf(pictures, pause) {
  const rows = pictures.flatMap(({ vectors, inliers }) => inliers.map((patch) => vectorOf(vectors, patch))), size = rows[0].length;
  const mean = new Float64Array(size), centred = new Float32Array(rows.length * size), values = new Float32Array(rows.length);
  for (const row of rows) add(mean, row, 1 / rows.length);
  rows.forEach((row, place) => centred.set(row.map((value, channel) => value - mean[channel]), place * size));
  const found = /** @type {Float32Array[]} */ ([]), images = /** @type {Float32Array[]} */ ([]);
  let next = Float32Array.from({ length: size }, (_, index) => Math.sin(index * index + 1));
  while (found.length < Math.min(PASSES, size)) {
    const before = dot(next, next);
    // Of a vector that is almost none, rounding leaves a part in the others.
    for (const _ of range(2)) for (const other of found) add(next, other, -dot(next, other));
    const length = Math.sqrt(dot(next, next));
    if (length <= NOTHING * Math.sqrt(before)) break;
    found.push(next.map((value) => value / length));
    await pause();
    products(found.at(-1), 0, centred, 0, size, values);
    next = new Float32Array(size);
    for (let row = 0; row < values.length; row++)
      for (let channel = 0; channel < size; channel++) next[channel] += values[row] * centred[row * size + channel];
    images.push(next.slice());
  }
  const directions = leading(found.map((vector) => images.map((image) => dot(vector, image)))).map((turn) => {
    const direction = found.reduce((total, vector, index) => add(total, vector, turn[index]), new Float32Array(size));
    const largest = direction.reduce((most, value) => (Math.abs(value) > Math.abs(most) ? value : most), 0);
    return direction.map((value) => value * Math.sign(largest));
  });
  const components = directions.map((direction) => (products(direction, 0, centred, 0, size, values), values.slice()));
  const total = dot(centred, centred), held = sum(components.map((component) => dot(component, component)));
  const ends = components.map((component) => ENDS.map((share) => percentile(component, share)));
  return { mean, directions, ends, share: total > NO_VARIANCE * rows.length ? held / total : 0 };
}

/**
 * The colours of a picture's patches: sRGB "patch channel" in [0, 1], the first two components as hues of OKLab, the third as lightness.
 * @param {Tensor} vectors
 * @param {Basis} basis
 */
export function coloursOf(vectors, { mean, directions, ends }) {
  const [count, size] = vectors.shape, components = directions.map((direction, index) => {
    const [low, high] = ends[index], values = new Float32Array(count), middle = dot(mean, direction);
    products(direction, 0, vectors, 0, size, values);
    return values.map((value) => (high - low > LEAST_SPAN ? clamped((value - middle - low) / (high - low), 0, 1) : 0.5));
  });
  return range(count).map((patch) => {
    const [first = 0.5, second = 0.5, third = 0.5] = components.map((values) => values[patch]);
    const oklab = [DARKEST + (LIGHTEST - DARKEST) * third, (first - 0.5) * HUES[0], (second - 0.5) * HUES[1]];
    const cones = CONES.map((row) => dot(row, oklab) ** 3);
    return LINEAR.map((row) => clamped(dot(row, cones), 0, 1))
      .map((level) => (level <= 0.0031308 ? 12.92 * level : 1.055 * level ** (1 / 2.4) - 0.055));
  });
}

/**
 * The patches of two pictures of which each is the other's most similar one, without outliers, best first.
 * @param {Squares[]} pictures
 * @param {Pause} pause
 */
export async function matchesOf([first, second], pause) {
  const back = new Map(), highest = new Float32Array(second.vectors.shape[0]).fill(-Infinity), there = [];
  for (const patch of first.inliers) {
    await pause();
    const values = cosines(second.vectors, first.vectors, patch);
    for (const other of second.inliers) if (values[other] > highest[other]) highest[other] = values[other], back.set(other, patch);
    const match = second.inliers.reduce((most, other) => (values[other] > values[most] ? other : most));
    there.push({ patches: [patch, match], score: values[match] });
  }
  return there.filter(({ patches: [patch, match] }) => back.get(match) === patch).sort((one, other) => other.score - one.score);
}

/**
 * The cosine of every patch with one of this or another picture: "patch".
 * @param {Tensor} vectors
 * @param {Tensor} asking the vectors of the other picture
 * @param {number} patch
 */
export function cosines(vectors, asking, patch) {
  const [count, size] = vectors.shape, values = new Float32Array(count);
  products(asking, patch, vectors, 0, size, values);
  return values.map((value) => clamped(value, -1, 1));
}
