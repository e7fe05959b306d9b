// A text as a QR code (ISO/IEC 18004): bytes, level L, versions 1 to 40.

import { range } from "./numbers.js";

// By version: check bytes of a block, and blocks.
const CHECKS = [
  7, 10, 15, 20, 26, 18, 20, 24, 30, 18, 20, 24, 26, 30, 22, 24, 28, 30, 28, 28, 28, 28, 30, 30, 26, 28, ...Array(14).fill(30),
];
const BLOCKS = [
  1, 1, 1, 1, 1, 2, 2, 2, 2, 4, 4, 4, 4, 4, 6, 6, 6, 6, 7, 8, 8, 9, 9, 10, 12, 12, 12, 13, 14, 15, 16, 17, 18, 19, 19, 20, 21, 22, 24, 25,
];

/** The product of two bytes in the field of the code. @param {number} a @param {number} b */
function product(a, b) {
  let result = 0;
  for (let bit = 7; bit >= 0; bit--) result = (result << 1) ^ ((result >>> 7) * 0x11d) ^ (((b >>> bit) & 1) * a);
  return result;
}

/**
 * The remainder of a polynomial whose coefficients are bytes, by the generator of this degree.
 * @param {number[]} bytes
 * @param {number} degree
 */
function checkBytes(bytes, degree) {
  let generator = [1], root = 1;
  for (let step = 0; step < degree; step++, root = product(root, 2))
    generator = [...generator, 0].map((value, index) => value ^ product(generator[index - 1] ?? 0, root));
  return bytes.reduce((rest, byte) => {
    const factor = byte ^ rest[0];
    return [...rest.slice(1), 0].map((value, index) => value ^ product(generator[index + 1], factor));
  }, Array(degree).fill(0));
}

/** Check bits of a number. @param {number} value @param {number} count @param {number} generator */
function withCheckBits(value, count, generator) {
  const rest = range(count).reduce((bits) => (bits << 1) ^ ((bits >>> (count - 1)) * generator), value);
  return (value << count) | rest;
}

/** Rows and columns of the centres of small squares. @param {number} version */
function alignments(version) {
  if (version === 1) return [];
  const count = Math.floor(version / 7) + 2, step = version === 32 ? 26 : Math.ceil((4 * version + 4) / (2 * count - 2)) * 2;
  return [6, ...range(count - 1).map((index) => 4 * version + 10 - step * (count - 2 - index))];
}

/** All bytes that a symbol of a version holds. @param {number} version */
function capacity(version) {
  const count = alignments(version).length, squares = count && (25 * count - 10) * count - 55;
  return Math.floor(((16 * version + 128) * version + 64 - squares - (version >= 7 ? 36 : 0)) / 8);
}

/**
 * The bytes of a symbol, with their check bytes, in the order in which they are drawn.
 * @param {Uint8Array} text
 * @param {number} version
 */
function symbolBytes(text, version) {
  const checks = CHECKS[version - 1], blocks = BLOCKS[version - 1], total = capacity(version), isLong = version > 9;
  const head = [4, ...(isLong ? [text.length >>> 12, (text.length >>> 8) & 15] : []), (text.length >>> 4) & 15, text.length & 15];
  const halves = [...head, ...[...text].flatMap((byte) => [byte >>> 4, byte & 15]), 0];
  const bytes = range(total - checks * blocks).map((index) => {
    const [high, low] = [halves[2 * index], halves[2 * index + 1]];
    return high === undefined ? [0xec, 0x11][(index - Math.ceil(halves.length / 2)) % 2] : (high << 4) | (low ?? 0);
  });
  const short = Math.floor(total / blocks) - checks, firstLong = blocks - (total % blocks);
  const starts = range(blocks).map((block) => block * short + Math.max(0, block - firstLong));
  const data = starts.map((start, block) => bytes.slice(start, start + short + Number(block >= firstLong)));
  const columns = (/** @type {number[][]} */ parts) =>
    range(short + checks + 1).flatMap((index) => parts.flatMap((part) => part[index] ?? []));
  return [...columns(data), ...columns(data.map((part) => checkBytes(part, checks)))];
}

/**
 * The dark squares of the smallest code that holds a text, row by row; null for a text that is too long.
 * @param {string} content
 * @returns {boolean[][] | null}
 */
export function qrCode(content) {
  const text = new TextEncoder().encode(content);
  const version = range(40).map((index) => index + 1).find((each) =>
    text.length + (each > 9 ? 3 : 2) <= capacity(each) - CHECKS[each - 1] * BLOCKS[each - 1]);
  if (!version) return null;
  const side = 4 * version + 17, rows = range(side).map(() => /** @type {boolean[]} */ ([]));
  const fill = (/** @type {number} */ row, /** @type {number} */ column, /** @type {any} */ isDark) => {
    if (rows[row] && column >= 0 && column < side) rows[row][column] = Boolean(isDark);
  };
  // Concentric squares around a centre: dark, but for these rings.
  const rings = (/** @type {number} */ row, /** @type {number} */ column, /** @type {number} */ radius, /** @type {number[]} */ light) => {
    for (const down of range(2 * radius + 1)) for (const across of range(2 * radius + 1))
      fill(row + down - radius, column + across - radius, !light.includes(Math.max(Math.abs(down - radius), Math.abs(across - radius))));
  };
  for (const place of range(side)) for (const [row, column] of [[6, place], [place, 6]]) fill(row, column, place % 2 === 0);
  const centres = alignments(version), last = centres.length - 1;
  centres.forEach((row, down) => centres.forEach((column, across) => {
    if (![[0, 0], [0, last], [last, 0]].some(([top, left]) => top === down && left === across)) rings(row, column, 2, [1]);
  }));
  for (const [row, column] of [[3, 3], [3, side - 4], [side - 4, 3]]) rings(row, column, 4, [2, 4]);
  // Level L and the first mask, twice; and the version of a large code.
  const format = withCheckBits(8, 10, 0x537) ^ 0x5412, number = withCheckBits(version, 12, 0x1f25);
  range(15).forEach((bit) => {
    const isDark = (format >>> bit) & 1, along = bit < 6 ? bit : bit < 8 ? bit + 1 : 0;
    fill(bit < 8 ? along : 8, bit < 8 ? 8 : bit === 8 ? 7 : 14 - bit, isDark);
    fill(bit < 8 ? 8 : side - 15 + bit, bit < 8 ? side - 1 - bit : 8, isDark);
  });
  fill(side - 8, 8, true);
  if (version >= 7) range(18).forEach((bit) => {
    const long = side - 11 + (bit % 3), short = Math.floor(bit / 3);
    for (const [row, column] of [[long, short], [short, long]]) fill(row, column, (number >>> bit) & 1);
  });
  const bits = symbolBytes(text, version).flatMap((byte) => range(8).map((bit) => (byte >>> (7 - bit)) & 1));
  // In pairs of columns from the right, up and down in turns, past the column of the clock.
  range((side - 1) / 2).forEach((pair) => {
    const right = side - 1 - 2 * pair - Number(pair >= (side - 7) / 2);
    for (const step of range(side)) for (const column of [right, right - 1]) {
      const row = pair % 2 ? step : side - 1 - step;
      if (rows[row][column] === undefined) fill(row, column, ((bits.shift() ?? 0) ^ Number((row + column) % 2 === 0)));
    }
  });
  return rows;
}
