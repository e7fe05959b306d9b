// Numbers, and how the page writes them.

/** Random letters and digits that nobody can guess. Over plain http, browsers have no `crypto.randomUUID`. */
export const randomId = () =>
  Array.from(crypto.getRandomValues(new Uint8Array(18)), (byte) => byte.toString(36).padStart(2, "0")).join("");

/**
 * A share in percent, as `percent` of vitviz/errors/number_text.py writes it.
 * @param {number} value
 */
export function percent(value) {
  if (Number.isNaN(value)) return "–";
  const percent = 100 * value;
  return percent === 0 ? "0%" : percent >= 0.1 ? `${percent.toFixed(1)}%` : `${percent.toPrecision(1)}%`;
}

/**
 * A probability in whole percent; 100 says that it is certain.
 * @param {number} probability
 */
export const wholePercent = (probability) => `${probability < 1 ? Math.min(99, Math.round(100 * probability)) : 100}%`;

/**
 * A probability as the headline says it, with a decimal where it is small.
 * @param {number} probability
 */
export const shortPercent = (probability) => (probability < 0.1 ? percent : wholePercent)(probability);

/**
 * A number to three significant digits, as `digits` of vitviz/errors/number_text.py writes it.
 * @param {number} value
 */
export function digits(value) {
  if (Number.isNaN(value)) return "–";
  if (value === 0) return "0";
  const magnitude = Math.abs(value);
  return magnitude >= 1e-4 && magnitude < 1e5 ? String(Number(value.toPrecision(3))) : value.toExponential(2);
}

/**
 * The function that writes values of a quantity.
 * @param {string} quantity
 */
export const formOf = (quantity) => (quantity === "probability" ? percent : digits);

/**
 * The numbers from 0 to `count` - 1.
 * @param {number} count
 */
export const range = (count) => [...Array(count).keys()];

/** @param {number[] | Numbers} values */
export const sum = (values) => /** @type {number[]} */ (values).reduce((total, value) => total + value, 0);

/**
 * @param {number} value
 * @param {number} low
 * @param {number} high
 */
export const clamped = (value, low, high) => Math.min(Math.max(value, low), high);

/**
 * A map minus another of the same grid, for the tokens of the first: patches by their place, the tokens before them by
 * their names; NaN for those that the second lacks.
 * @param {Float32Array} first
 * @param {Float32Array} second
 * @param {string[]} firstPrefix names of the tokens before the patches
 * @param {string[]} secondPrefix
 */
export function differenceOfMaps(first, second, firstPrefix, secondPrefix) {
  return first.map((value, token) => {
    const name = firstPrefix[token];
    const index = name === undefined ? token - firstPrefix.length + secondPrefix.length : secondPrefix.indexOf(name);
    return index < 0 ? NaN : value - second[index];
  });
}
