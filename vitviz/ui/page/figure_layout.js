// A figure for a paper: where its pictures and texts lie, in units of which one panel is 640 wide.

import { clamped, range } from "./numbers.js";

export const FIGURE_TEXT = 12;
// Of a figure of one panel, and of each of several side by side; four lie in two rows.
const ONE_WIDTH = 640, PANEL_WIDTH = 420, MAX_COLUMNS = 3;
const FIGURE_GAP = 18, FIGURE_LINE = 17, BAR_HEIGHT = 10, MIN_BAR = 40, MAX_BAR = 180;

/**
 * A text in lines that fit into a width.
 * @param {string} text
 * @param {number} width
 * @param {(text: string) => number} measure the width of a text
 */
export function linesOf(text, width, measure) {
  const lines = [""];
  for (const word of text.split(" ").filter(Boolean)) {
    const line = lines[lines.length - 1], longer = line ? `${line} ${word}` : word;
    if (line && measure(longer) > width) lines.push(word);
    else lines[lines.length - 1] = longer;
  }
  return lines[0] ? lines : [];
}

/**
 * The items of a figure, and its size.
 * @param {FigurePanel[]} panels
 * @param {FigureParts} parts which texts it has
 * @param {(text: string) => number} measure
 * @returns {FigureLayout}
 */
export function figureLayout(panels, parts, measure) {
  const columns = panels.length === 4 ? 2 : Math.min(panels.length, MAX_COLUMNS), width = columns === 1 ? ONE_WIDTH : PANEL_WIDTH;
  /** @type {FigureItem[]} */
  const items = [];
  let bottom = FIGURE_GAP;
  range(Math.ceil(panels.length / columns)).forEach((row) => {
    const top = bottom;
    panels.slice(row * columns, (row + 1) * columns).forEach((panel, column) => {
      const letter = panels.length > 1 ? String.fromCharCode(97 + row * columns + column) : "";
      const x = FIGURE_GAP + column * (width + FIGURE_GAP);
      bottom = Math.max(bottom, top + addPanel(items, panel, { letter, parts, x, top, width, measure }) + FIGURE_GAP);
    });
  });
  return { items, width: FIGURE_GAP + columns * (width + FIGURE_GAP), height: Math.ceil(bottom) };
}

/**
 * Add the items of a panel; returns its height.
 * @param {FigureItem[]} items
 * @param {FigurePanel} panel
 * @param {any} options
 */
function addPanel(items, { badge, legend, caption, ratio, draw }, { letter, parts, x, top, width, measure }) {
  let y = top;
  const write = (/** @type {string} */ text, left = x, isBold = false) =>
    items.push({ text, x: left, y: y + FIGURE_TEXT, isBold });
  const indent = letter ? 18 : 0, heading = parts.badge ? linesOf(badge, width - indent, measure) : [];
  if (letter) write(letter, x, true);
  for (const line of heading.length || !letter ? heading : [""]) {
    if (line) write(line, x + indent);
    y += FIGURE_LINE + 3;
  }
  const height = width * ratio;
  items.push({ x, y, width, height, draw });
  y += height + 6;
  if (parts.legend && legend) {
    const { low, high, quantity, bar } = legend;
    const [lowWidth, highWidth, quantityWidth] = [low, high, quantity].map((text) => measure(text) + 8);
    const isBeside = lowWidth + MIN_BAR + highWidth + quantityWidth + 8 <= width;
    const barWidth = clamped(width - lowWidth - highWidth - 8 - (isBeside ? quantityWidth : 0), MIN_BAR, MAX_BAR);
    write(low);
    items.push({ x: x + lowWidth, y: y + 2, width: barWidth, height: BAR_HEIGHT, draw: bar });
    write(high, x + lowWidth + barWidth + 8);
    if (isBeside) write(quantity, x + lowWidth + barWidth + 8 + highWidth);
    y += FIGURE_LINE;
    for (const line of isBeside ? [] : linesOf(quantity, width, measure)) write(line), (y += FIGURE_LINE);
  }
  for (const line of parts.caption ? linesOf(caption, width, measure) : []) write(line), (y += FIGURE_LINE);
  return y - top;
}
