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
 * The size of a picture; a pixel has `step` values, of which the first ones are its channels.
 * @typedef {{ width: number, height: number, channels: number, step?: number }} PictureSize
 */
/**
 * How one side is resized: for each output pixel its first input pixel, their number, and their weights, `most` for each; whole weights
 * have so many bits of a fraction.
 * @typedef {{ first: Int32Array, counts: Int32Array, weights: Float64Array | Int32Array, most: number, bits?: number }} SideWeights
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
 * @param {SideWeights} side of all output pixels
 */
function bitsOfTorch({ weights }) {
  const most = Array.from(weights).reduce((largest, weight) => Math.max(largest, weight), 0);
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
 * @returns {SideWeights}
 */
function wholeWeights(from, to, start, end, filter, isTorch) {
  const { weights, ...side } = sideOf(filter)(from, to, start, end, filter);
  const bits = isTorch ? bitsOfTorch(sideOf(filter)(from, to, 0, to, filter)) : PILLOW_BITS;
  return { ...side, bits, weights: Int32Array.from(weights, (w) => Math.trunc(w * 2 ** bits + (w < 0 ? -0.5 : 0.5))) };
}

/**
 * The sum of values by the weights of an output pixel, `step` apart.
 * @param {ArrayLike<number>} values
 * @param {number} from
 * @param {number} step
 * @param {SideWeights} side by whole weights, the sum is rounded
 * @param {number} place of the output pixel
 */
function weightedSum(values, from, step, { counts, weights, most, bits = 0 }, place) {
  let total = bits && 2 ** (bits - 1);
  for (let k = 0, weight = place * most; k < counts[place]; k++) total += values[from + k * step] * weights[weight + k];
  return bits ? total >> bits : total;
}

/**
 * A part of a resized picture, of 256 levels or of real numbers.
 * @template {Uint8ClampedArray | Float32Array} Pixels
 * @param {ArrayLike<number>} source "height width step"
 * @param {PictureSize} size of the source
 * @param {SideWeights} across
 * @param {SideWeights} down
 * @param {(count: number) => Pixels} make
 */
function resized(source, { width, channels, step = channels }, across, down, make) {
  const columns = across.first.length, line = columns * channels, start = down.first[0];
  const end = Math.max(...down.first.map((first, i) => first + down.counts[i]));
  const rows = make((end - start) * line), out = make(down.first.length * line);
  for (let y = start, o = 0; y < end; y++)
    for (let x = 0; x < columns; x++)
      for (let c = 0; c < channels; c++, o++)
        rows[o] = weightedSum(source, (y * width + across.first[x]) * step + c, step, across, x);
  for (let y = 0, o = 0; y < down.first.length; y++)
    for (let x = 0; x < line; x++, o++) out[o] = weightedSum(rows, (down.first[y] - start) * line + x, line, down, y);
  return out;
}

/**
 * A part of a resized picture of 256 levels.
 * @param {ArrayLike<number>} source bytes "height width step"
 * @param {PictureSize} size of the source
 * @param {{ width: number, height: number }} to size of the whole resized picture
 * @param {[number, number, number, number]} crop left, top, right and lower edge of the part
 * @param {string} filter of FILTERS, "nearest" as in Pillow, or "nearest-exact" as in torch
 * @param {boolean} isTorch whether torch's weights are rounded, or Pillow's
 * @returns {Uint8Array} "height width channel"
 */
export function resizeLevels(source, size, to, [left, top, right, bottom], filter, isTorch) {
  const across = wholeWeights(size.width, to.width, left, right, filter, isTorch);
  const down = wholeWeights(size.height, to.height, top, bottom, filter, isTorch);
  return new Uint8Array(resized(source, size, across, down, (count) => new Uint8ClampedArray(count)).buffer);
}

/**
 * A part of a resized picture of real numbers, which are not rounded.
 * @param {ArrayLike<number>} source "height width step"
 * @param {PictureSize} size of the source
 * @param {{ width: number, height: number }} to size of the whole resized picture
 * @param {[number, number, number, number]} crop left, top, right and lower edge of the part
 * @param {string} filter of FILTERS, "nearest" as in Pillow, or "nearest-exact" as in torch
 * @returns {Float32Array} "height width channel"
 */
export function resizeNumbers(source, size, to, [left, top, right, bottom], filter) {
  const side = sideOf(filter), across = side(size.width, to.width, left, right, filter);
  return resized(source, size, across, side(size.height, to.height, top, bottom, filter), (count) => new Float32Array(count));
}
