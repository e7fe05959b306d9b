// From the values of a map to positions between the ends of its colours, as in vitviz/visualization/scales.py.

import { clamped, sum } from "./numbers.js";

// The rule that chooses a scale.
const READABLE_MEDIAN = 0.1, BRIGHT_MEDIAN = 0.6, DIFFERENT_RATIO = 3, MIN_SUM_SHARE = 0.5;
const ONE_PEAK = { percentile: 99, ratio: 3, spread: [2, 98] }, SEVERAL_PEAKS = { percentile: 95, ratio: 4, spread: [5, 95] };
// The lower end of the logarithmic scale is at least this share of the upper one.
const LOG_FLOOR = 1e-4;
// The colours of a linear scale that was chosen span at least this share of the largest value.
const MIN_CONTRAST = 0.2;
const SMALLEST_RANGE = 1.1754943508222875e-38;

/**
 * The value at a percentile of sorted values; `round` is Math.floor or Math.ceil.
 * @param {Float64Array} sorted
 * @param {number} percent
 * @param {(place: number) => number} round
 */
const percentileOf = (sorted, percent, round) => sorted[round((sorted.length - 1) * (percent / 100))];

/**
 * The number of sorted values that are less.
 * @param {Float64Array} sorted
 * @param {number} value
 */
function countLess(sorted, value) {
  let low = 0, high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low;
}

/**
 * The values without NaN, which stands for a missing one.
 * @template {Numbers} Values
 * @param {Values} values
 * @returns {Values}
 */
export const withoutNaN = (values) =>
  values.some(Number.isNaN) ? /** @type {any} */ (values.filter((value) => !Number.isNaN(value))) : values;

/**
 * The values at the ends of the colours, for sorted values; those of a signed map are magnitudes.
 * @type {Record<ScaleName, (sorted: Float64Array, percentiles: Percentiles, signed: boolean) => [number, number]>}
 */
const SCALE_ENDS = {
  linear: (sorted, _, signed) => [signed ? 0 : sorted[0], sorted[sorted.length - 1]],
  robust: (sorted, [low, high], signed) => [signed ? 0 : percentileOf(sorted, low, Math.ceil), percentileOf(sorted, high, Math.floor)],
  log: (sorted) => {
    const firstPositive = sorted.findIndex((value) => value > 0), high = sorted[sorted.length - 1];
    return firstPositive < 0 ? [0, 0] : [Math.max(sorted[firstPositive] / (firstPositive ? 2 : 1), high * LOG_FLOOR), high];
  },
  rank: (sorted, _, signed) => [signed ? 0 : sorted[0], sorted[sorted.length - 1]],
  zero: (sorted) => [0, sorted[sorted.length - 1]],
};

/**
 * By scale, a function of the ends and the sorted values that returns the function from a value to its position.
 * @type {Record<ScaleName, (low: number, high: number, sorted: Float64Array) => (value: number) => number>}
 */
const SCALE_PLACES = {
  linear: (low, high) => {
    const range = Math.max(high - low, SMALLEST_RANGE);
    return (value) => (value - low) / range;
  },
  robust: (low, high, sorted) => {
    const linear = SCALE_PLACES.linear(low, high, sorted);
    return (value) => clamped(linear(value), 0, 1);
  },
  log: (low, high, sorted) => {
    if (!(low > 0 && low < high)) return SCALE_PLACES.robust(low, high, sorted);
    const range = Math.log(high / low);
    return (value) => Math.log(clamped(value, low, high) / low) / range;
  },
  rank: (low, high, sorted) => {
    const clampedValues = sorted.map((value) => clamped(value, low, high)), total = Math.max(1, countLess(clampedValues, high));
    return (value) => (Number.isNaN(value) ? NaN : countLess(clampedValues, clamped(value, low, high)) / total);
  },
  zero: (low, high, sorted) => SCALE_PLACES.robust(low, high, sorted),
};

/**
 * A scale fitted to sorted values; it may colour others.
 * @param {ScaleName} name
 * @param {number} low
 * @param {number} high
 * @param {Float64Array} sorted
 * @param {Percentiles} percentiles
 * @param {boolean} signed
 * @param {boolean} automatic
 */
function scaleOfEnds(name, low, high, sorted, percentiles, signed, automatic) {
  const placeOf = SCALE_PLACES[name](low, high, sorted), contrast = signed ? 1 : contrastOf(sorted);
  const ends = /** @type {[number, number]} */ ([signed ? -high : low, high]);
  const beyond = (/** @type {Numbers} */ values) =>
    [values.filter((value) => value < ends[0]).length, values.filter((value) => value > ends[1]).length];
  return {
    name, low, high, signed, automatic, ends,

    /** The number of values below and above the ends. */
    beyond,

    /**
     * The positions of values: 0 and 1 at the ends; those of a linear scale may lie outside.
     * @param {Numbers} values
     */
    places: (values) => values.map(signed ? (value) => 0.5 + 0.5 * Math.sign(value) * placeOf(Math.abs(value)) : placeOf),

    /**
     * One sentence about the colours of a map; empty for a linear scale that holds every value.
     * @param {Numbers} values
     * @param {ScaleRecord} record
     */
    caption(values, record) {
      const [below, above] = beyond(values);
      if (name === "linear" && !below && !above) {
        const isFlat = automatic && contrast > 0 && contrast < MIN_CONTRAST;
        return isFlat ? `Almost flat: the values differ by less than ${Math.floor(100 * contrast) + 1} %.` : "";
      }
      const [lower, upper] = percentiles.map(String), words = (signed && record.signed_caption) || record.caption;
      const about = words.replace("{low}", lower).replace("{high}", upper);
      const [first, side] = above ? [above, "above"] : [below, "below"];
      if (!first) return `${about}.`;
      const others = above && below ? ` and ${below} below` : "";
      return `${about}; ${first} of ${values.length} patches ${first === 1 ? "lies" : "lie"} ${side} it${others}.`;
    },
  };
}

/**
 * One scale for one or several maps.
 * @param {ScaleName | null} name of a scale; null chooses one from the values, or the linear one if an end is fixed
 * @param {Numbers[]} maps the values of each
 * @param {ScaleOptions} options percentiles of a robust scale, fixed ends low and high, signed if zero is in the middle, and
 *   like: the name of the scale that an automatic one repeats
 */
export function fitScale(name, maps, { percentiles = [2, 98], low = null, high = null, signed = false, like = null } = {}) {
  const all = new Float64Array(sum(maps.map(({ length }) => length)));
  maps.reduce((start, values) => (all.set(values, start), start + values.length), 0);
  const sorted = (signed ? all.map(Math.abs) : all).sort();
  const isChosen = name === null && low === null && high === null;
  const scaleName = name ?? (isChosen ? like ?? chooseScale(sorted, percentiles, signed) : "linear");
  let [start, end] = SCALE_ENDS[scaleName](sorted, percentiles, signed);
  const contrast = contrastOf(sorted);
  if (isChosen && scaleName === "linear" && !signed && contrast > 0 && contrast < MIN_CONTRAST)
    end = start + MIN_CONTRAST * Math.max(Math.abs(start), Math.abs(end));
  const isAllowed = (/** @type {number} */ value) => scaleName !== "log" || value > 0;
  if (signed) {
    // An end of 0 says nothing of a scale around zero.
    end = Math.max(Math.abs(low ?? 0), Math.abs(high ?? 0)) || end;
  } else {
    if (low !== null && isAllowed(low)) start = low;
    if (high !== null && isAllowed(high)) end = high;
    else if (low !== null) end = Math.max(start, end);
  }
  return scaleOfEnds(scaleName, Math.min(start, end), end, sorted, percentiles, signed, name === null);
}

/**
 * The difference between the highest and the lowest of sorted values, as a share of the largest magnitude.
 * @param {Float64Array} sorted
 */
function contrastOf(sorted) {
  const low = sorted[0], high = sorted[sorted.length - 1];
  return (high - low) / Math.max(Math.abs(low), Math.abs(high), SMALLEST_RANGE);
}

/**
 * Whether peaks take up the colours of other values that differ: see `Peak` of scales.py.
 * @param {Float64Array} sorted
 * @param {typeof ONE_PEAK} options
 */
function hasPeak(sorted, { percentile, ratio, spread: [low, high] }) {
  return sorted[sorted.length - 1] > ratio * percentileOf(sorted, percentile, Math.floor)
    && percentileOf(sorted, high, Math.floor) > DIFFERENT_RATIO * percentileOf(sorted, low, Math.ceil);
}

/**
 * Whether the patches below several peaks have most of the sum.
 * @param {Float64Array} sorted
 */
function restHasMost(sorted) {
  const count = Math.floor((sorted.length - 1) * (SEVERAL_PEAKS.percentile / 100)) + 1;
  return sum(sorted.subarray(0, count)) > MIN_SUM_SHARE * sum(sorted);
}

/**
 * The scale that best shows sorted values: see `choose` of scales.py.
 * @param {Float64Array} sorted
 * @param {Percentiles} percentiles
 * @param {boolean} signed
 */
function chooseScale(sorted, percentiles, signed) {
  const median = percentileOf(sorted, 50, Math.floor);
  const placeOfMedian = (/** @type {ScaleName} */ name) =>
    SCALE_PLACES[name](...SCALE_ENDS[name](sorted, percentiles, signed), sorted)(median);
  if (placeOfMedian("linear") >= READABLE_MEDIAN) return "linear";
  if (hasPeak(sorted, ONE_PEAK)) {
    const position = placeOfMedian("robust");
    return position >= READABLE_MEDIAN && position <= BRIGHT_MEDIAN ? "robust" : "log";
  }
  return hasPeak(sorted, SEVERAL_PEAKS) && restHasMost(sorted) ? "robust" : "linear";
}
