// From the values of a map to places between the two ends of its colours, as vitviz/visualization/scales.py has it.

// The rule by which a scale is chosen.
const READABLE_MEDIAN = 0.1, BRIGHT_MEDIAN = 0.6, DIFFERENT_RATIO = 3, HELD_SHARE = 0.5;
const ONE_PEAK = { percentile: 99, ratio: 3, spread: [2, 98] }, SEVERAL_PEAKS = { percentile: 95, ratio: 4, spread: [5, 95] };
// The logarithmic scale reaches down to this part of its upper end.
const LOG_FLOOR = 1e-4;
const SMALLEST_RANGE = 1.1754943508222875e-38;

/** The value at a percentile of sorted values: the next one on its lower or higher side. */
const percentileOf = (sorted, percent, round) => sorted[round((sorted.length - 1) * (percent / 100))];

/** How many sorted values are less. */
function countLess(sorted, value) {
  let low = 0, high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** The values of which there are any: NaN stands for none. */
const withoutNaN = (values) => (values.some(Number.isNaN) ? values.filter((value) => !Number.isNaN(value)) : values);

const clamped = (value, low, high) => Math.min(Math.max(value, low), high);

/** Values at the ends of the colours, of sorted values, which are magnitudes of a signed map. */
const SCALE_ENDS = {
  linear: (sorted, _, signed) => [signed ? 0 : sorted[0], sorted.at(-1)],
  robust: (sorted, [low, high], signed) => [signed ? 0 : percentileOf(sorted, low, Math.ceil), percentileOf(sorted, high, Math.floor)],
  log: (sorted) => {
    const others = sorted.findIndex((value) => value > 0), high = sorted.at(-1);
    return others < 0 ? [0, 0] : [Math.max(sorted[others] / (others ? 2 : 1), high * LOG_FLOOR), high];
  },
  rank: (sorted, _, signed) => [signed ? 0 : sorted[0], sorted.at(-1)],
  zero: (sorted) => [0, sorted.at(-1)],
};

/** The place of a value, by scale, each made for the ends and the sorted values. */
const SCALE_PLACES = {
  linear: (low, high) => {
    const range = Math.max(high - low, SMALLEST_RANGE);
    return (value) => (value - low) / range;
  },
  robust: (low, high) => {
    const straight = SCALE_PLACES.linear(low, high);
    return (value) => clamped(straight(value), 0, 1);
  },
  log: (low, high) => {
    if (!(low > 0 && low < high)) return SCALE_PLACES.robust(low, high);
    const range = Math.log(high / low);
    return (value) => Math.log(clamped(value, low, high) / low) / range;
  },
  rank: (low, high, sorted) => {
    const kept = sorted.map((value) => clamped(value, low, high)), most = Math.max(1, countLess(kept, high));
    return (value) => (Number.isNaN(value) ? NaN : countLess(kept, clamped(value, low, high)) / most);
  },
  zero: (low, high) => SCALE_PLACES.robust(low, high),
};

/** A scale with the ends that some values give it; it may colour other values, too. */
class FittedScale {
  constructor(name, low, high, sorted, percentiles, signed, automatic) {
    Object.assign(this, { name, low, high, percentiles, signed, automatic });
    this.one = SCALE_PLACES[name](low, high, sorted);
  }

  get ends() {
    return [this.signed ? -this.high : this.low, this.high];
  }

  /** The places of values: 0 and 1 at the ends, which a linear scale may leave. */
  places(values) {
    const found = new Float32Array(values.length), { one, signed } = this;
    for (let index = 0; index < values.length; index++) {
      const value = values[index];
      found[index] = signed ? 0.5 + 0.5 * Math.sign(value) * one(Math.abs(value)) : one(value);
    }
    return found;
  }

  /** How many values lie below and above the ends. */
  beyond(values) {
    const [low, high] = this.ends;
    let below = 0, above = 0;
    for (const value of values) {
      if (value < low) below += 1;
      if (value > high) above += 1;
    }
    return [below, above];
  }

  /** One sentence about the colours of a map; empty for a linear scale that holds every value. */
  caption(values, record) {
    const [below, above] = this.beyond(values);
    if (this.name === "linear" && !below && !above) return "";
    const name = record.caption.replace("{low}", this.percentiles[0]).replace("{high}", this.percentiles[1]);
    const [first, side] = above ? [above, "above"] : [below, "below"];
    if (!first) return `${name}.`;
    return `${name}; ${first} of ${values.length} patches ${first === 1 ? "lies" : "lie"} ${side} it${above && below ? ` and ${below} below` : ""}.`;
  }
}

/**
 * One scale for the values of one map or several together.
 * @param name of a scale; null for the one that the values ask for, or the linear one where an end is given
 * @param maps the values of each
 * @param options percentiles of a robust scale, values at the ends in place of its own, whether zero is in the middle
 */
function fitScale(name, maps, { percentiles = [2, 98], low = null, high = null, signed = false } = {}) {
  const sorted = new Float64Array(maps.reduce((sum, values) => sum + values.length, 0));
  maps.reduce((start, values) => (sorted.set(values, start), start + values.length), 0);
  if (signed) sorted.forEach((value, index) => { sorted[index] = Math.abs(value); });
  sorted.sort();
  const chosen = name ?? (low === null && high === null ? chooseScale(sorted, percentiles, signed) : "linear");
  let [start, end] = SCALE_ENDS[chosen](sorted, percentiles, signed);
  const isEnd = (value) => value !== null && (chosen !== "log" || value > 0);
  if (signed) {
    const given = [low, high].filter((value) => value !== null).map(Math.abs);
    if (given.length) end = Math.max(...given);
  } else {
    if (isEnd(low)) start = low;
    if (isEnd(high)) end = high;
  }
  return new FittedScale(chosen, Math.min(start, end), end, sorted, percentiles, signed, name === null);
}

/** Whether the highest of sorted values take all colours from others that differ: see `Peak` of scales.py. */
function hasPeak(sorted, { percentile, ratio, spread: [low, high] }) {
  return sorted.at(-1) > ratio * percentileOf(sorted, percentile, Math.floor)
    && percentileOf(sorted, high, Math.floor) > DIFFERENT_RATIO * percentileOf(sorted, low, Math.ceil);
}

/** Whether the patches below several peaks hold most of the sum. */
function othersHoldMost(sorted) {
  const count = Math.floor((sorted.length - 1) * (SEVERAL_PEAKS.percentile / 100)) + 1;
  const sum = (values) => values.reduce((total, value) => total + value, 0);
  return sum(sorted.subarray(0, count)) > HELD_SHARE * sum(sorted);
}

/** The scale that shows most of sorted values: see `choose` of scales.py. */
function chooseScale(sorted, percentiles, signed) {
  const median = percentileOf(sorted, 50, Math.floor);
  const placeOfMedian = (name) => SCALE_PLACES[name](...SCALE_ENDS[name](sorted, percentiles, signed), sorted)(median);
  if (placeOfMedian("linear") >= READABLE_MEDIAN) return "linear";
  if (hasPeak(sorted, ONE_PEAK)) {
    const place = placeOfMedian("robust");
    return place >= READABLE_MEDIAN && place <= BRIGHT_MEDIAN ? "robust" : "log";
  }
  return hasPeak(sorted, SEVERAL_PEAKS) && othersHoldMost(sorted) ? "robust" : "linear";
}
