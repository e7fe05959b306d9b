// What squares of pictures have in common, as vitviz/features computes it: colours of their components, cosines, and mutual matches.

import { clamped, range, sum } from "./numbers.js";

/**
 * Vectors "patch channel" of length 1, and the patches that are no outliers.
 * @typedef {{ vectors: Tensor, kept: number[] }} Squares
 */
/** @typedef {{ mean: Float64Array, directions: Float64Array[], ends: number[][], share: number }} Basis */

// The components that have colours, and the vectors with which they are sought: the more, the fewer passes over all squares.
const COMPONENTS = 3, SOUGHT = 8, PASSES = 24, SMALL_PASSES = 2000;
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
 * @param {Float64Array} target
 * @param {ArrayLike<number>} vector
 * @param {number} times
 */
function add(target, vector, times) {
  for (let index = 0; index < target.length; index++) target[index] += times * vector[index];
  return target;
}

/**
 * The leading eigenvectors of a symmetric matrix, by orthogonal iteration.
 * @param {(vector: Float64Array) => Float64Array} multiply by the matrix
 * @param {number} size
 * @param {number} passes
 */
function leading(multiply, size, passes) {
  /** @type {Float64Array[]} */
  let found = range(Math.min(SOUGHT, size)).map((wave) =>
    Float64Array.from({ length: size }, (_, index) => Math.cos(Math.PI * wave * (index + 0.5) / size)));
  for (const _ of range(passes)) found = found.map(multiply).reduce((others, vector) => {
    for (const other of others) add(vector, other, -dot(vector, other));
    const length = Math.sqrt(dot(vector, vector)) || 1;
    return [...others, vector.map((value) => value / length)];
  }, /** @type {Float64Array[]} */ ([]));
  return found;
}

/**
 * The vector of a patch.
 * @param {Tensor} vectors
 * @param {number} patch
 */
const vectorOf = (vectors, patch) => vectors.subarray(patch * vectors.shape[1], (patch + 1) * vectors.shape[1]);

/**
 * A value of which a share of the others is lower.
 * @param {number[]} values
 * @param {number} share
 */
function percentile(values, share) {
  const sorted = [...values].sort((a, b) => a - b), place = share * (sorted.length - 1), lower = Math.floor(place);
  return sorted[lower] + (place - lower) * (sorted[Math.ceil(place)] - sorted[lower]);
}

/**
 * One basis of the squares of several pictures, and the share of their variance that it holds.
 * @param {Squares[]} pictures
 * @returns {Basis}
 */
export function basisOf(pictures) {
  const rows = pictures.flatMap(({ vectors, kept }) => kept.map((patch) => vectorOf(vectors, patch))), size = rows[0].length;
  const zeros = () => /** @type {Float64Array} */ (new Float64Array(size));
  const mean = rows.reduce((total, row) => add(total, row, 1 / rows.length), zeros());
  const centred = rows.map((row) => Float64Array.from(row, (value, channel) => value - mean[channel]));
  const multiply = (/** @type {Float64Array} */ vector) =>
    centred.reduce((product, row) => add(product, row, dot(row, vector)), zeros());
  // Within the space that a few passes find, the axes of the matrix, which lie close together, take many.
  const space = leading(multiply, size, PASSES), products = space.map(multiply);
  const matrix = space.map((vector) => Float64Array.from(products, (product) => dot(product, vector)));
  const turns = leading((vector) => Float64Array.from(matrix, (row) => dot(row, vector)), space.length, SMALL_PASSES);
  const directions = turns.slice(0, COMPONENTS).map((turn) => {
    const direction = space.reduce((total, vector, index) => add(total, vector, turn[index]), zeros());
    const largest = direction.reduce((most, value) => (Math.abs(value) > Math.abs(most) ? value : most), 0);
    return direction.map((value) => value * Math.sign(largest));
  });
  const components = directions.map((direction) => centred.map((row) => dot(row, direction)));
  const total = sum(centred.map((row) => dot(row, row))), held = sum(components.map((values) => dot(values, values)));
  const ends = components.map((values) => ENDS.map((share) => percentile(values, share)));
  return { mean, directions, ends, share: total ? held / total : 0 };
}

/**
 * The colours of a picture's patches: sRGB "patch channel" in [0, 1], the first two components as hues of OKLab, the third as lightness.
 * @param {Tensor} vectors
 * @param {Basis} basis
 */
export const coloursOf = (vectors, { mean, directions, ends }) => range(vectors.shape[0]).map((patch) => {
  const centred = Float64Array.from(vectorOf(vectors, patch), (value, channel) => value - mean[channel]);
  const [first = 0.5, second = 0.5, third = 0.5] = directions.map((direction, index) => {
    const [low, high] = ends[index];
    return high - low > LEAST_SPAN ? clamped((dot(centred, direction) - low) / (high - low), 0, 1) : 0.5;
  });
  const oklab = [DARKEST + (LIGHTEST - DARKEST) * third, (first - 0.5) * HUES[0], (second - 0.5) * HUES[1]];
  const cones = CONES.map((row) => dot(row, oklab) ** 3);
  return LINEAR.map((row) => clamped(dot(row, cones), 0, 1))
    .map((level) => (level <= 0.0031308 ? 12.92 * level : 1.055 * level ** (1 / 2.4) - 0.055));
});

/**
 * The most similar patch of another picture for each of one, without outliers.
 * @param {Squares} asking
 * @param {Squares} answering
 */
const nearest = (asking, answering) => new Map(asking.kept.map((patch) => {
  const values = cosines(answering.vectors, asking.vectors, patch);
  return [patch, answering.kept.reduce((most, each) => (values[each] > values[most] ? each : most))];
}));

/**
 * The patches of two pictures of which each is the other's most similar one, best first.
 * @param {Squares[]} pictures
 */
export function matchesOf([first, second]) {
  const there = nearest(first, second), back = nearest(second, first);
  return [...there].filter(([patch, match]) => back.get(match) === patch)
    .map((patches) => ({ patches, score: dot(vectorOf(first.vectors, patches[0]), vectorOf(second.vectors, patches[1])) }))
    .sort((one, other) => other.score - one.score);
}

/**
 * The cosine of every patch with one of this or another picture: "patch".
 * @param {Tensor} vectors
 * @param {Tensor} asking the vectors of the other picture
 * @param {number} patch
 */
export function cosines(vectors, asking, patch) {
  const vector = vectorOf(asking, patch);
  return Float32Array.from(range(vectors.shape[0]), (index) => clamped(dot(vectorOf(vectors, index), vector), -1, 1));
}
