// From values to pixels.

import { range } from "./numbers.js";
import { fromBase64 } from "./packs.js";

// The table of signed values.
export const DIFFERENCE = "coolwarm";

/**
 * Colour tables by name, as 256 pixels of a canvas each. `tables` has their bytes in base64.
 * @param {any} tables
 */
export function readColours(tables) {
  return Object.fromEntries(Object.entries(tables).map(([name, table]) => {
    const bytes = fromBase64(table), pixelOf = (/** @type {number} */ step) =>
      (255 << 24) | (bytes[3 * step + 2] << 16) | (bytes[3 * step + 1] << 8) | bytes[3 * step];
    return [name, Uint32Array.from(range(256), pixelOf)];
  }));
}

/**
 * A pixel of a colour table as a CSS colour.
 * @param {any} pixel
 */
export const rgbOf = (pixel) => `rgb(${pixel & 255} ${(pixel >> 8) & 255} ${(pixel >> 16) & 255})`;

/**
 * A colour table as a CSS gradient of 16 stops.
 * @param {ColourTable} colours
 */
export const gradient = (colours) => `linear-gradient(to right, ${range(16).map((stop) => rgbOf(colours[17 * stop])).join(", ")})`;

/**
 * A colour table as it looks over one colour of the picture.
 * @param {ColourTable} colours
 * @param {number[]} ground red, green and blue
 * @param {Look} look
 * @param {boolean} signed
 */
export function composited(colours, ground, { fade, opacity = 1 }, signed) {
  return (fade ? faded(colours, signed) : colours).map((/** @type {number} */ pixel) => {
    const share = opacity * (pixel >>> 24) / 255;
    return ground.reduce((mixed, level, channel) =>
      mixed | Math.round(share * ((pixel >> (8 * channel)) & 255) + (1 - share) * level) << (8 * channel), 0);
  });
}

/**
 * Paint positions on a scale "row column" into pixels of a wider picture, from pixel `start` on; NaN is transparent.
 * @param {any} positions
 * @param {number} rows
 * @param {number} columns
 * @param {ColourTable} colours
 * @param {any} pixels
 * @param {any} stride
 * @param {number} start
 */
export function paintPixels(positions, rows, columns, colours, pixels, stride, start) {
  for (let row = 0, index = 0; row < rows; row++) {
    for (let column = 0; column < columns; column++, index++) {
      // 256 equal steps, as on the server and in matplotlib.
      const step = 256 * positions[index];
      pixels[start + row * stride + column] = Number.isNaN(step) ? 0 : colours[step > 255 ? 255 : step > 0 ? step | 0 : 0];
    }
  }
}

/**
 * Values "row column" interpolated between patch centres, `times` as many along each side.
 * @param {Float32Array} values
 * @param {number} rows
 * @param {number} columns
 * @param {any} times
 */
export function interpolated(values, rows, columns, times) {
  const width = columns * times, result = new Float32Array(rows * times * width);
  const along = (/** @type {number} */ count) => range(count * times).map((index) => {
    const position = Math.min(Math.max((index + 0.5) / times - 0.5, 0), count - 1), lower = Math.floor(position);
    return [lower, Math.min(lower + 1, count - 1), position - lower];
  });
  const across = along(columns);
  along(rows).forEach(([upperRow, lowerRow, down], row) => across.forEach(([left, right, share], column) => {
    const upper = values[upperRow * columns + left] * (1 - share) + values[upperRow * columns + right] * share;
    const lower = values[lowerRow * columns + left] * (1 - share) + values[lowerRow * columns + right] * share;
    result[row * width + column] = upper * (1 - down) + lower * down;
  }));
  return result;
}

// As in vitviz/visualization/overlays.py: weak values leave the photograph clear.
const FADE_EXPONENT = 1.5;

/**
 * A colour table whose weak end is transparent; of signed values, the middle is.
 * @param {ColourTable} colours
 * @param {boolean} signed
 */
export const faded = (colours, signed) => colours.map((pixel, step) => {
  const strength = signed ? Math.abs(step - 127.5) / 127.5 : step / 255;
  // The shift by 0 makes the number unsigned.
  return ((Math.round(255 * strength ** FADE_EXPONENT) << 24) | (pixel & 0xffffff)) >>> 0;
});
