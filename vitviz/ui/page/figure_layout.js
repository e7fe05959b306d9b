// A figure for a paper: where its pictures and texts lie, which canvas, SVG and PDF draw alike. In units of its width.

import { clamped, range } from "./numbers.js";

export const FIGURE_FONT = "Helvetica, Arial, sans-serif", FIGURE_TEXT = 12;
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
function addPanel(items, { badge, legend, caption, ratio, parts: own }, { letter, parts, x, top, width, measure }) {
  let y = top;
  const write = (/** @type {string} */ text, left = x, isBold = false) =>
    items.push({ text, x: left, y: y + FIGURE_TEXT, isBold, anchor: "start" });
  const indent = letter ? 18 : 0, heading = parts.badge ? linesOf(badge, width - indent, measure) : [];
  if (letter) write(letter, x, true);
  for (const line of heading.length || !letter ? heading : [""]) {
    if (line) write(line, x + indent);
    y += FIGURE_LINE + 3;
  }
  const height = width * ratio;
  items.push(...own(width).map((/** @type {FigureItem} */ item) => ({ ...item, x: x + item.x, y: y + item.y })));
  y += height + 6;
  if (parts.legend && legend) {
    const { low, high, quantity, bar } = legend;
    const [lowWidth, highWidth, quantityWidth] = [low, high, quantity].map((text) => measure(text) + 8);
    const isBeside = lowWidth + MIN_BAR + highWidth + quantityWidth + 8 <= width;
    const barWidth = clamped(width - lowWidth - highWidth - 8 - (isBeside ? quantityWidth : 0), MIN_BAR, MAX_BAR);
    write(low);
    items.push({ x: x + lowWidth, y: y + 2, width: barWidth, height: BAR_HEIGHT, picture: bar, isPixelated: true });
    write(high, x + lowWidth + barWidth + 8);
    if (isBeside) write(quantity, x + lowWidth + barWidth + 8 + highWidth);
    y += FIGURE_LINE;
    for (const line of isBeside ? [] : linesOf(quantity, width, measure)) write(line), (y += FIGURE_LINE);
  }
  for (const line of parts.caption ? linesOf(caption, width, measure) : []) write(line), (y += FIGURE_LINE);
  return y - top;
}

/**
 * A figure as SVG, with its texts as text.
 * @param {FigureLayout} layout
 * @param {(item: any) => string} addressOf a picture, as a data URL
 * @param {string} title
 */
export function figureAsSvg({ items, width, height }, addressOf, title) {
  const escaped = (/** @type {string} */ text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;");
  const elements = items.map((item) => item.picture
    ? `<image x="${item.x}" y="${item.y}" width="${item.width}" height="${item.height}" preserveAspectRatio="none"`
      + `${item.isPixelated ? ' style="image-rendering: pixelated"' : ""} href="${addressOf(item)}"/>`
    : `<text x="${item.x}" y="${item.y}"${item.isBold ? ' font-weight="bold"' : ""} text-anchor="${item.anchor}">`
      + `${escaped(item.text ?? "")}</text>`);
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" width="${width}" height="${height}" `
    + `font-family="${FIGURE_FONT}" font-size="${FIGURE_TEXT}"><title>${escaped(title)}</title>\n`
    + `<rect width="100%" height="100%" fill="white"/>\n${elements.join("\n")}\n</svg>\n`;
}

/**
 * A picture as the one page of a PDF file.
 * @param {Uint8Array<ArrayBuffer>} deflated its pixels, RGB, as zlib writes them
 * @param {[number, number]} pixels
 * @param {[number, number]} points width and height of the page, of 1/72 inch each
 */
export function picturePdf(deflated, [columns, rows], [width, height]) {
  const place = `q ${width} 0 0 ${height} 0 0 cm /Im Do Q`;
  const picture = `/Subtype /Image /Width ${columns} /Height ${rows} /ColorSpace /DeviceRGB /BitsPerComponent 8 /Filter /FlateDecode`;
  const objects = [
    ["<< /Type /Catalog /Pages 2 0 R >>"],
    ["<< /Type /Pages /Kids [3 0 R] /Count 1 >>"],
    [`<< /Type /Page /Parent 2 0 R /MediaBox [0 0 ${width} ${height}] `
      + "/Resources << /XObject << /Im 4 0 R >> >> /Contents 5 0 R >>"],
    [`<< /Type /XObject ${picture} /Length ${deflated.length} >>\nstream\n`, deflated, "\nendstream"],
    [`<< /Length ${place.length} >>\nstream\n${place}\nendstream`],
  ];
  /** @type {(string | Uint8Array<ArrayBuffer>)[]} */
  const parts = ["%PDF-1.4\n"];
  const lengthNow = () => parts.reduce((sum, part) => sum + part.length, 0);
  const places = objects.map((object, index) => {
    const start = lengthNow();
    parts.push(`${index + 1} 0 obj\n`, ...object, "\nendobj\n");
    return `${String(start).padStart(10, "0")} 00000 n \n`;
  });
  const start = lengthNow(), count = objects.length + 1;
  parts.push(`xref\n0 ${count}\n0000000000 65535 f \n${places.join("")}`);
  parts.push(`trailer\n<< /Size ${count} /Root 1 0 R >>\nstartxref\n${start}\n%%EOF\n`);
  return new Blob(parts, { type: "application/pdf" });
}
