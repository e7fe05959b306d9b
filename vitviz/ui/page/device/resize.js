// Resizing as Pillow does with pictures of 256 levels, or as torch does with tensors: vitviz/images/resizing.py. Rows are
// resized first, then columns, by weights of the input pixels around each output pixel.

/** @param {number} x */
const sinc = (x) => (x === 0 ? 1 : Math.sin(x * Math.PI) / (x * Math.PI));
/** @param {number} x */
const hamming = (x) => (x >= 1 ? 0 : sinc(x) * (0.54 + 0.46 * Math.cos(x * Math.PI)));
/** @param {number} x */
const bicubic = (x) => (x < 1 ? (1.5 * x - 2.5) * x * x + 1 : x < 2 ? (((x - 5) * x + 8) * x - 4) * -0.5 : 0);

/** The radius of each filter in input pixels, and its weight at a distance. @type {Record<string, [number, (x: number) => number]>} */
const FILTERS = {
  box: [0.5, (x) => (x > -0.5 && x <= 0.5 ? 1 : 0)],
  bilinear: [1, (x) => Math.max(0, 1 - Math.abs(x))],
  hamming: [1, (x) => hamming(Math.abs(x))],
  bicubic: [2, (x) => bicubic(Math.abs(x))],
  lanczos: [3, (x) => (x >= -3 && x < 3 ? sinc(x) * sinc(x / 3) : 0)],
};
/** The bits of a fraction that Pillow's weights have. */
const PILLOW_BITS = 22;

/**
 * How one side is resized: for each output pixel its first input pixel, their number, and their weights, `most` for each.
 * @typedef {{ first: Int32Array, counts: Int32Array, weights: Float64Array, most: number }} SideWeights
 */

/**
 * The weights for the output pixels [start, end) of a side.
 * @param {number} from length of the input
 * @param {number} to length of the whole output
 * @param {number} start
 * @param {number} end
 * @param {string} filter
 * @returns {SideWeights}
 */
function sideWeights(from, to, start, end, filter) {
  const scale = from / to, stretch = Math.max(1, scale), [radius, weigh] = FILTERS[filter], support = radius * stretch;
  const most = from === to ? 1 : 2 * Math.ceil(support) + 1, length = end - start;
  const first = new Int32Array(length), counts = new Int32Array(length).fill(1), weights = new Float64Array(length * most);
  for (let i = 0; i < length; i++) {
    if (from === to) {
      first[i] = start + i, weights[i] = 1;
      continue;
    }
    const centre = (start + i + 0.5) * scale;
    first[i] = Math.max(0, Math.trunc(centre - support + 0.5));
    counts[i] = Math.min(from, Math.trunc(centre + support + 0.5)) - first[i];
    let total = 0;
    for (let k = 0; k < counts[i]; k++) total += weights[i * most + k] = weigh((k + first[i] - centre + 0.5) * (1 / stretch));
    if (total) for (let k = 0; k < counts[i]; k++) weights[i * most + k] /= total;
  }
  return { first, counts, weights, most };
}

/**
 * The input pixel nearest to each output pixel, as Pillow finds it: by adding up the distances.
 * @param {number} from
 * @param {number} to
 * @param {number} start
 * @param {number} end
 * @returns {SideWeights}
 */
function nearestPixels(from, to, start, end) {
  const first = new Int32Array(end - start), scale = from / to;
  for (let i = 0, place = scale * 0.5; i < end; i++, place += scale)
    if (i >= start) first[i - start] = Math.min(from - 1, Math.trunc(place));
  return { first, counts: new Int32Array(end - start).fill(1), weights: new Float64Array(end - start).fill(1), most: 1 };
}

/**
 * The input pixel nearest to each output pixel, as torch finds it: in single precision.
 * @param {number} from
 * @param {number} to
 * @param {number} start
 * @param {number} end
 * @returns {SideWeights}
 */
function exactlyNearestPixels(from, to, start, end) {
  const side = nearestPixels(from, to, start, end), scale = Math.fround(from / to);
  return { ...side, first: side.first.map((_, i) => Math.min(from - 1, Math.floor(Math.fround((start + i + 0.5) * scale)))) };
}

/**
 * How a side is resized by a filter: of FILTERS, "nearest" or "nearest-exact".
 * @param {string} filter
 */
const sideOf = (filter) => (filter === "nearest" ? nearestPixels : filter === "nearest-exact" ? exactlyNearestPixels : sideWeights);

/**
 * How many bits of a fraction torch's weights have: as many as let the largest one fit into 16 bits.
 * @param {Float64Array} weights of all output pixels
 */
function bitsOfTorch(weights) {
  const most = weights.reduce((largest, weight) => Math.max(largest, weight), 0);
  let bits = 0;
  while (bits < PILLOW_BITS && Math.trunc(0.5 + most * 2 ** (bits + 1)) < 2 ** 15) bits++;
  return bits;
}

/**
 * The weights as whole numbers of 2 ** -bits.
 * @param {number} from
 * @param {number} to
 * @param {number} start
 * @param {number} end
 * @param {string} filter
 * @param {boolean} isTorch
 */
function wholeWeights(from, to, start, end, filter, isTorch) {
  const { weights, ...side } = sideOf(filter)(from, to, start, end, filter);
  const bits = isTorch ? bitsOfTorch(sideOf(filter)(from, to, 0, to, filter).weights) : PILLOW_BITS;
  return { ...side, bits, weights: Int32Array.from(weights, (w) => Math.trunc(w * 2 ** bits + (w < 0 ? -0.5 : 0.5))) };
}

/**
 * A part of a resized picture of 256 levels.
 * @param {ArrayLike<number>} source bytes "height width step"
 * @param {{ width: number, height: number, channels: number, step?: number }} size of the source; a pixel has `step` values, of which the
 *   first ones are its channels
 * @param {{ width: number, height: number }} to size of the whole resized picture
 * @param {[number, number, number, number]} crop left, top, right and lower edge of the part
 * @param {string} filter of FILTERS, "nearest" as in Pillow, or "nearest-exact" as in torch
 * @param {boolean} isTorch whether torch's weights are rounded, or Pillow's
 * @returns {Uint8Array} "height width channel"
 */
export function resizeLevels(source, { width, height, channels, step = channels }, to, [left, top, right, bottom], filter, isTorch) {
  const across = wholeWeights(width, to.width, left, right, filter, isTorch), line = (right - left) * channels;
  const down = wholeWeights(height, to.height, top, bottom, filter, isTorch);
  const start = down.first[0], end = Math.max(...down.first.map((first, i) => first + down.counts[i]));
  const rows = new Uint8ClampedArray((end - start) * line), out = new Uint8ClampedArray((bottom - top) * line);
  for (let y = start, o = 0; y < end; y++)
    for (let x = 0; x < right - left; x++)
      for (let c = 0, count = across.counts[x]; c < channels; c++, o++) {
        let total = 2 ** (across.bits - 1);
        const from = (y * width + across.first[x]) * step + c, weight = x * across.most;
        for (let k = 0; k < count; k++) total = (total + source[from + k * step] * across.weights[weight + k]) | 0;
        rows[o] = total >> across.bits;
      }
  for (let y = 0, o = 0; y < bottom - top; y++)
    for (let x = 0; x < line; x++, o++) {
      let total = 2 ** (down.bits - 1);
      const from = (down.first[y] - start) * line + x, weight = y * down.most;
      for (let k = 0, count = down.counts[y]; k < count; k++) total = (total + rows[from + k * line] * down.weights[weight + k]) | 0;
      out[o] = total >> down.bits;
    }
  return new Uint8Array(out.buffer);
}

/**
 * A part of a resized picture of real numbers, which are not rounded.
 * @param {ArrayLike<number>} source "height width step"
 * @param {{ width: number, height: number, channels: number, step?: number }} size of the source; a pixel has `step` values, of which the
 *   first ones are its channels
 * @param {{ width: number, height: number }} to size of the whole resized picture
 * @param {[number, number, number, number]} crop left, top, right and lower edge of the part
 * @param {string} filter of FILTERS, "nearest" as in Pillow, or "nearest-exact" as in torch
 * @returns {Float32Array} "height width channel"
 */
export function resizeNumbers(source, { width, height, channels, step = channels }, to, [left, top, right, bottom], filter) {
  const side = sideOf(filter), line = (right - left) * channels;
  const across = side(width, to.width, left, right, filter), down = side(height, to.height, top, bottom, filter);
  const start = down.first[0], end = Math.max(...down.first.map((first, i) => first + down.counts[i]));
  const rows = new Float32Array((end - start) * line), out = new Float32Array((bottom - top) * line);
  for (let y = start, o = 0; y < end; y++)
    for (let x = 0; x < right - left; x++)
      for (let c = 0; c < channels; c++, o++) {
        let total = 0;
        const from = (y * width + across.first[x]) * step + c, weight = x * across.most;
        for (let k = 0; k < across.counts[x]; k++) total += source[from + k * step] * across.weights[weight + k];
        rows[o] = total;
      }
  for (let y = 0, o = 0; y < bottom - top; y++)
    for (let x = 0; x < line; x++, o++) {
      let total = 0;
      const from = (down.first[y] - start) * line + x, weight = y * down.most;
      for (let k = 0; k < down.counts[y]; k++) total += rows[from + k * line] * down.weights[weight + k];
      out[o] = total;
    }
  return out;
}
