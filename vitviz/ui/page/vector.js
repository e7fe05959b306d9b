// A canvas that writes down what is drawn on it: in SVG, lines stay lines, texts texts, and photographs JPEG.

import { contextOf, createCanvas } from "./dom.js";

export const FIGURE_FONT = "Helvetica, Arial, sans-serif";
// Of a photograph, the most pixels for a unit of the figure.
const PHOTO_PIXELS = 3, JPEG_QUALITY = 0.9;
// From the named place of a text to its base line, as a share of its size.
const BASELINES = /** @type {Record<string, number>} */ ({ alphabetic: 0, middle: 0.35, top: 0.8, bottom: -0.2 });
const ANCHORS = /** @type {Record<string, number>} */ ({ left: 0, start: 0, center: 0.5, right: 1, end: 1 });
const COLOURS = /** @type {Record<string, number[]>} */ ({ black: [0, 0, 0, 1], white: [255, 255, 255, 1] });

/** The part of CanvasRenderingContext2D that the page's figures use. */
export class Recorder {
  globalAlpha = 1;
  fillStyle = "black";
  strokeStyle = "black";
  lineWidth = 1;
  font = "";
  textAlign = "left";
  textBaseline = "alphabetic";
  imageSmoothingEnabled = true;
  /** @type {VectorMark[]} */
  marks = [];
  /** @type {PathStep[]} */
  path = [];
  /** @type {PathStep[] | null} */
  clipping = null;
  /** @type {number[]} */
  dash = [];
  origin = [0, 0];
  /** @type {any[]} */
  states = [];

  save() {
    this.states.push({ ...this });
  }

  restore() {
    Object.assign(this, this.states.pop());
  }

  /** @param {number} x @param {number} y */
  translate(x, y) {
    this.origin = [this.origin[0] + x, this.origin[1] + y];
  }

  beginPath() {
    this.path = [];
  }

  /** @param {number} x @param {number} y */
  moveTo(x, y) {
    this.path.push(["M", this.origin[0] + x, this.origin[1] + y]);
  }

  /** @param {number} x @param {number} y */
  lineTo(x, y) {
    this.path.push(["L", this.origin[0] + x, this.origin[1] + y]);
  }

  /** @param {number} x @param {number} y @param {number} width @param {number} height */
  rect(x, y, width, height) {
    this.moveTo(x, y);
    for (const [right, bottom] of [[width, 0], [width, height], [0, height], [0, 0]]) this.lineTo(x + right, y + bottom);
  }

  /** @param {number[]} lengths */
  setLineDash(lengths) {
    this.dash = lengths;
  }

  clip() {
    this.clipping = this.path;
  }

  /** @param {string=} rule */
  fill(rule) {
    this.add({ path: this.path, fill: this.fillStyle, rule });
  }

  stroke() {
    this.add({ path: this.path, stroke: this.strokeStyle });
  }

  /** @param {[number, number, number, number]} box */
  fillRect(...box) {
    this.beginPath();
    this.rect(...box);
    this.fill();
  }

  /** @param {[number, number, number, number]} box */
  strokeRect(...box) {
    this.beginPath();
    this.rect(...box);
    this.stroke();
  }

  /** @param {string} text @param {number} x @param {number} y */
  fillText(text, x, y) {
    this.write(text, x, y, { fill: this.fillStyle });
  }

  /** @param {string} text @param {number} x @param {number} y */
  strokeText(text, x, y) {
    this.write(text, x, y, { stroke: this.strokeStyle });
  }

  /** @param {string} text @param {number} x @param {number} y @param {object} paint */
  write(text, x, y, paint) {
    const size = Number(/([\d.]+)px/.exec(this.font)?.[1]), baseline = y + size * BASELINES[this.textBaseline];
    this.add({ text: String(text), size, isBold: this.font.startsWith("bold"), anchor: ANCHORS[this.textAlign],
      x: this.origin[0] + x, y: this.origin[1] + baseline, ...paint });
  }

  /**
   * A canvas is copied as it is now, whole or a part of it; of a photograph, the whole.
   * @param {any} source
   * @param {number[]} places as drawImage takes them
   */
  drawImage(source, ...places) {
    const [x, y, width, height] = places.slice(-4), isPhoto = !(source instanceof HTMLCanvasElement);
    const [left, top, across, down] = places.length > 4 ? places : [0, 0, source.width, source.height];
    const times = isPhoto ? Math.min(1, PHOTO_PIXELS * width / across) : 1;
    const copy = createCanvas(Math.max(1, Math.round(across * times)), Math.max(1, Math.round(down * times)));
    contextOf(copy).drawImage(source, left, top, across, down, 0, 0, copy.width, copy.height);
    this.add({ image: copy, isPhoto, isSmooth: this.imageSmoothingEnabled,
      x: this.origin[0] + x, y: this.origin[1] + y, width, height });
  }

  /** @param {object} mark */
  add(mark) {
    this.marks.push({ ...mark, alpha: this.globalAlpha, lineWidth: this.lineWidth, dash: this.dash, clipping: this.clipping });
  }
}

/**
 * Red, green and blue from 0 to 255, and alpha, of a colour as canvases have it.
 * @param {string} style
 */
const channelsOf = (style) => COLOURS[style] ?? (style[0] === "#"
  ? [...[1, 3, 5].map((start) => parseInt(style.slice(start, start + 2), 16)), 1]
  : [...(style.match(/[\d.]+/g) ?? []).map(Number), 1].slice(0, 4));

const rounded = (/** @type {number} */ value) => String(Math.round(100 * value) / 100);

/** @param {PathStep[]} path */
const svgPath = (path) => path.map(([step, ...place]) => step + place.map(rounded).join(" ")).join("");

const escaped = (/** @type {string} */ text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;");

/**
 * @param {VectorMark} mark
 * @param {number} index
 */
async function svgMark(mark, index) {
  const { alpha, path, image, text, clipping, x, y } = mark, names = /** @type {Record<string, any>} */ ({});
  for (const kind of /** @type {("fill" | "stroke")[]} */ (["fill", "stroke"])) {
    const [red, green, blue, part] = channelsOf(mark[kind] ?? "black");
    names[kind] = mark[kind] ? `rgb(${red},${green},${blue})` : "none";
    if (mark[kind] && part < 1) names[`${kind}-opacity`] = part;
  }
  if (mark.stroke) names["stroke-width"] = rounded(mark.lineWidth);
  if (mark.stroke && mark.dash.length) names["stroke-dasharray"] = mark.dash.map(rounded).join(" ");
  if (alpha < 1) names.opacity = alpha;
  if (clipping) names["clip-path"] = `url(#clip${index})`;
  const attributes = (/** @type {Record<string, any>} */ more) =>
    Object.entries({ ...names, ...more }).map(([name, value]) => ` ${name}="${value}"`).join("");
  const clip = clipping ? `<clipPath id="clip${index}"><path d="${svgPath(clipping)}"/></clipPath>` : "";
  if (image) {
    const href = image.toDataURL(mark.isPhoto ? "image/jpeg" : "image/png", JPEG_QUALITY), { width, height } = mark;
    const style = mark.isSmooth ? {} : { style: "image-rendering: pixelated" };
    return `${clip}<image${attributes({ x, y, width, height, preserveAspectRatio: "none", ...style, href })}/>`;
  }
  if (path) return `${clip}<path${attributes({ d: svgPath(path), ...(mark.rule && { "fill-rule": mark.rule }) })}/>`;
  const anchor = ["start", "middle", "end"][2 * mark.anchor], weight = mark.isBold ? { "font-weight": "bold" } : {};
  const place = { x: rounded(x), y: rounded(y), "font-size": mark.size, "text-anchor": anchor };
  return `${clip}<text${attributes({ ...place, ...weight })}>${escaped(text ?? "")}</text>`;
}

/**
 * @param {VectorMark[]} marks
 * @param {number} width
 * @param {number} height
 * @param {string} title
 */
export async function vectorSvg(marks, width, height, title) {
  const parts = await Promise.all(marks.map(svgMark));
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" width="${width}" height="${height}" `
    + `font-family="${FIGURE_FONT}"><title>${escaped(title)}</title>\n${parts.join("\n")}\n</svg>\n`;
}
