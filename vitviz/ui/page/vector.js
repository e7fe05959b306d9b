// A canvas that writes down what is drawn on it: in SVG, lines stay lines, texts texts, and photographs JPEG.

import { contextOf, createCanvas } from "./dom.js";

export const FIGURE_FONT = "Helvetica, Arial, sans-serif";
// Of a photograph, the most pixels for a unit of the figure.
const PHOTO_PIXELS = 3, JPEG_QUALITY = 0.9;
// From the named place of a text to its base line, as a share of its size.
const BASELINES = /** @type {Record<string, number>} */ ({ alphabetic: 0, middle: 0.35, top: 0.8, bottom: -0.2 });
const ANCHORS = /** @type {Record<string, string>} */ ({ left: "start", center: "middle", right: "end" });
const COLOURS = /** @type {Record<string, number[]>} */ ({ black: [0, 0, 0, 1], white: [255, 255, 255, 1] });

/** @typedef {{ fill?: string, stroke?: string }} Paint */

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
  /** @type {string[]} */
  marks = [];
  path = "";
  clipping = "";
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
    this.path = "";
  }

  /** @param {number} x @param {number} y */
  moveTo(x, y) {
    this.step("M", x, y);
  }

  /** @param {number} x @param {number} y */
  lineTo(x, y) {
    this.step("L", x, y);
  }

  /** @param {[number, number, number, number]} places */
  quadraticCurveTo(...places) {
    this.step("Q", ...places);
  }

  /** @param {string} kind @param {...number} places */
  step(kind, ...places) {
    this.path += kind + places.map((place, axis) => rounded(this.origin[axis % 2] + place)).join(" ");
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

  /** @param {string} rule */
  fill(rule = "") {
    this.add("path", { fill: this.fillStyle }, { d: this.path, "fill-rule": rule });
  }

  stroke() {
    this.add("path", { stroke: this.strokeStyle }, { d: this.path });
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
    this.write({ fill: this.fillStyle }, text, x, y);
  }

  /** @param {string} text @param {number} x @param {number} y */
  strokeText(text, x, y) {
    this.write({ stroke: this.strokeStyle }, text, x, y);
  }

  /** @param {Paint} paint @param {string} text @param {number} x @param {number} y */
  write(paint, text, x, y) {
    const size = Number(/([\d.]+)px/.exec(this.font)?.[1]), baseline = this.origin[1] + y + size * BASELINES[this.textBaseline];
    this.add("text", paint, {
      x: rounded(this.origin[0] + x), y: rounded(baseline), "font-size": size, "text-anchor": ANCHORS[this.textAlign],
      "font-weight": this.font.startsWith("bold") ? "bold" : "",
    }, String(text));
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
    this.add("image", {}, {
      x: this.origin[0] + x, y: this.origin[1] + y, width, height, preserveAspectRatio: "none",
      style: this.imageSmoothingEnabled ? "" : "image-rendering: pixelated",
      href: copy.toDataURL(isPhoto ? "image/jpeg" : "image/png", JPEG_QUALITY),
    });
  }

  /**
   * @param {string} tag
   * @param {Paint} paint
   * @param {Record<string, any>} own attributes of it alone; an empty one is left out
   * @param {string=} text
   */
  add(tag, { fill, stroke }, own, text) {
    const { lineWidth, dash, globalAlpha, clipping } = this, clip = `clip${this.marks.length}`;
    const attributes = {
      ...paintOf("fill", fill), ...paintOf("stroke", stroke),
      ...(stroke && { "stroke-width": rounded(lineWidth), "stroke-dasharray": dash.map(rounded).join(" ") }),
      opacity: globalAlpha < 1 ? globalAlpha : "", "clip-path": clipping && `url(#${clip})`, ...own,
    };
    const written = Object.entries(attributes).filter(([, value]) => value !== "").map(([name, value]) => ` ${name}="${value}"`).join("");
    this.marks.push((clipping && `<clipPath id="${clip}"><path d="${clipping}"/></clipPath>`)
      + `<${tag}${written}${text === undefined ? "/>" : `>${escaped(text)}</${tag}>`}`);
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

const escaped = (/** @type {string} */ text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;");

/**
 * The attributes of a style.
 * @param {"fill" | "stroke"} kind
 * @param {string=} style
 */
function paintOf(kind, style) {
  if (!style) return { [kind]: "none" };
  const [red, green, blue, part] = channelsOf(style);
  return { [kind]: `rgb(${red},${green},${blue})`, [`${kind}-opacity`]: part < 1 ? part : "" };
}

/**
 * @param {Recorder} recorder
 * @param {number} width
 * @param {number} height
 * @param {string} title
 */
export const vectorSvg = ({ marks }, width, height, title) =>
  `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" width="${width}" height="${height}" `
    + `font-family="${FIGURE_FONT}"><title>${escaped(title)}</title>\n${marks.join("\n")}\n</svg>\n`;
