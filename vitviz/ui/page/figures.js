// Figures of a probe's measurements: what all of them are made with.

import { Chart } from "./chart.js";
import { Mosaic } from "./mosaic.js";
import { range } from "./numbers.js";

/**
 * The values at one place along the first axis or axes.
 * @param {Tensor} values
 * @param {...number} places
 * @returns {Tensor}
 */
export function valuesAt(values, ...places) {
  const size = values.shape.slice(places.length).reduce((/** @type {number} */ product, /** @type {number} */ side) => product * side, 1);
  const start = places.reduce((sum, place, axis) => sum * values.shape[axis] + place, 0) * size;
  const subvalues = /** @type {Tensor} */ (values.subarray(start, start + size));
  subvalues.shape = values.shape.slice(places.length);
  return subvalues;
}

/**
 * A mosaic as a figure.
 * @param {string} title
 * @param {MosaicCell[]} cells
 * @param {MosaicOptions} options
 * @param {any=} others
 */
export function mosaicFigure(title, cells, options, others = {}) {
  const mosaic = new Mosaic(cells, options);
  return {
    title: sentenceCase(title),
    parts: mosaic.parts,
    draw: (/** @type {number} */ width, /** @type {string} */ ink) => mosaic.draw(width, ink),
    mosaic,
    ...others,
  };
}

/**
 * @param {string} title
 * @param {ChartOptions} options
 */
export function chartFigure(title, options) {
  const chart = new Chart(options);
  return { title: sentenceCase(title), parts: chart.parts, draw: (/** @type {number} */ width) => chart.draw(width), chart };
}

/** @param {number} value */
export const isKnown = (value) => !Number.isNaN(value);

/** @param {string} text */
export const sentenceCase = (text) => text[0].toUpperCase() + text.slice(1);

/**
 * The places of the second axis with the highest values in any step, the highest first.
 * @param {Tensor} values
 */
export function highestOf(values) {
  const [steps, count] = values.shape,
    highest = range(count).map((index) => Math.max(...range(steps).map((step) => values[step * count + index])));
  return range(count).sort((a, b) => highest[b] - highest[a]).slice(0, MAX_LINES);
}

// The number of lines or classes with colours of their own.
export const MAX_LINES = 6;
