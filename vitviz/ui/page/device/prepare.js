// From a decoded picture to the network's input, and where that lies on the picture: vitviz/images/preprocessing.py.

import { resizeLevels, resizeNumbers } from "./resize.js";

/**
 * The nearest whole number, of two the even one, as Python rounds.
 * @param {number} value
 */
function roundToEven(value) {
  const below = Math.floor(value), rest = value - below;
  return rest > 0.5 || (rest === 0.5 && below % 2 !== 0) ? below + 1 : below;
}

/**
 * The size of the whole resized picture, of which the crop is cut out.
 * @param {number} imageWidth
 * @param {number} imageHeight
 * @param {PreprocessingFacts} preprocessing
 * @param {Fit} fit
 */
function sizeBeforeCrop(imageWidth, imageHeight, preprocessing, fit) {
  const { crop_fraction: cropFraction, squash_fraction: squashFraction, rounding } = preprocessing;
  const fraction = fit === "crop" ? cropFraction : squashFraction;
  let height = Math.floor(preprocessing.height / fraction), width = Math.floor(preprocessing.width / fraction);
  if (fit === "squash") return { height, width };
  const short = Math.min(height, width);
  if (rounding === "transformers" && Math.max(preprocessing.height, preprocessing.width) <= short) height = width = short;
  if (height !== width) {
    const ratio = Math.min(imageHeight / height, imageWidth / width);
    return { height: roundToEven(imageHeight / ratio), width: roundToEven(imageWidth / ratio) };
  }
  if (imageWidth >= imageHeight) return { height, width: Math.trunc((height * imageWidth) / imageHeight) };
  return { height: Math.trunc((width * imageHeight) / imageWidth), width };
}

/**
 * A picture in grey, as Pillow makes it.
 * @param {ArrayLike<number>} data "height width 4"
 */
function greyOf(data) {
  const grey = new Uint8Array(data.length / 4);
  for (let i = 0, o = 0; i < data.length; i += 4, o++)
    grey[o] = (data[i] * 19595 + data[i + 1] * 38470 + data[i + 2] * 7471 + 0x8000) >> 16;
  return grey;
}

/**
 * A picture reduced to as many pixels as a square of this side has, and enlarged again; smaller ones are unchanged.
 * @param {Float32Array} values "height width channel"
 * @param {{ width: number, height: number, channels: number }} size
 * @param {number | null} detail
 */
function reduceDetail(values, size, detail) {
  const { width, height, channels } = size, scale = detail === null ? 1 : detail / Math.sqrt(height * width);
  if (scale >= 1) return values;
  const low = { width: Math.max(1, roundToEven(scale * width)), height: Math.max(1, roundToEven(scale * height)) };
  const reduced = resizeNumbers(values, size, low, [0, 0, low.width, low.height], "bilinear");
  return resizeNumbers(reduced, { ...low, channels }, size, [0, 0, width, height], "bilinear");
}

/**
 * The network's input of a picture, and where it lies on the picture.
 *
 * @param {{ data: ArrayLike<number>, width: number, height: number }} image upright, "height width 4": red, green, blue and an alpha that
 *   is not read, as `getImageData` gives it
 * @param {PreprocessingFacts} preprocessing of a device file
 * @param {Fit} fit "crop" or "squash"; by default the model's own
 * @returns {{ pixels: Float32Array, picture: PreparedPicture }} pixels are "channel height width"
 */
export function preparePicture({ data, width, height }, preprocessing, fit = preprocessing.fit) {
  if (fit === "native") throw Error("The page runs the network at its own input size: fit a picture by crop or squash");
  const { input_height: inputHeight, input_width: inputWidth, mean, std, backend, interpolation, rounding, detail } = preprocessing;
  const resized = sizeBeforeCrop(width, height, preprocessing, fit), toPixel = rounding === "transformers" ? Math.floor : roundToEven;
  const left = toPixel((resized.width - preprocessing.width) / 2), top = toPixel((resized.height - preprocessing.height) / 2);
  /** @type {[number, number, number, number]} */
  const crop = [left, top, left + inputWidth, top + inputHeight];
  const channels = mean.length, size = { width: inputWidth, height: inputHeight, channels };
  const source = channels === 1 ? greyOf(data) : data, from = { width, height, channels, step: channels === 1 ? 1 : 4 };
  const filter = backend !== "pillow" && interpolation === "nearest" ? "nearest-exact" : interpolation;
  const levels = backend === "torchvision float"
    ? resizeNumbers(source, from, resized, crop, filter)
    : resizeLevels(source, from, resized, crop, filter, backend !== "pillow");
  const fitted = Float32Array.from(levels, (level) => level / 255);
  const values = reduceDetail(fitted, size, detail);
  const pixels = new Float32Array(values.length), plane = inputWidth * inputHeight;
  for (let i = 0; i < values.length; i++) {
    const channel = i % channels;
    pixels[channel * plane + (i - channel) / channels] = (values[i] - mean[channel]) / std[channel];
  }
  // Multiplied before they are divided, so that the edges of the picture are exact.
  const box = crop.map((edge, i) => (i % 2 ? (edge * height) / resized.height : (edge * width) / resized.width));
  return { pixels, picture: { width, height, box, inputHeight, inputWidth } };
}
