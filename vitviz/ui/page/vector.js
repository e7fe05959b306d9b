// A canvas that writes down what is drawn on it: in SVG and PDF, lines stay lines, texts texts, and photographs JPEG.

import { contextOf, createCanvas } from "./dom.js";
import { range } from "./numbers.js";
import { compressed } from "./packs.js";

export const FIGURE_FONT = "Helvetica, Arial, sans-serif";
// Of a photograph, the most pixels for a unit of the figure; and points of 1/72 inch for a unit.
const PHOTO_PIXELS = 3, JPEG_QUALITY = 0.9, POINTS_PER_UNIT = 0.75;
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

/** @param {BlobPart} content */
const deflated = (content) => compressed(content, "deflate");

// The bytes of the letters that the fonts of every reader of PDF have.
const PDF_LETTERS = new Map([...new TextDecoder("windows-1252").decode(Uint8Array.from(range(256)))].map((letter, byte) => [letter, byte]));
PDF_LETTERS.set("−", 0x96);

/**
 * A text in hexadecimal; null if it has other letters.
 * @param {string} text
 */
function pdfText(text) {
  const bytes = [...text].map((letter) => PDF_LETTERS.get(letter));
  return bytes.includes(undefined) ? null : bytes.map((byte) => Number(byte).toString(16).padStart(2, "0")).join("");
}

/**
 * A text as a picture, where a PDF file has no font for it.
 * @param {VectorMark} mark
 * @param {number} width
 * @returns {VectorMark}
 */
function pictureOfText({ size, text, isBold, anchor, x, y, ...mark }, width) {
  const times = 4, canvas = createCanvas(Math.ceil(times * width), Math.ceil(times * size * 1.4)), context = contextOf(canvas);
  context.font = `${isBold ? "bold " : ""}${times * size}px ${FIGURE_FONT}`;
  context.fillText(text ?? "", 0, times * size);
  return { ...mark, image: canvas, isSmooth: true, x: x - anchor * width, y: y - size, width, height: size * 1.4 };
}

class PdfFile {
  /** @type {(string | Uint8Array<ArrayBuffer>)[][]} */
  objects = [];

  /**
   * Add an object, and return the reference to it.
   * @param {...(string | Uint8Array<ArrayBuffer>)} parts
   */
  add(...parts) {
    return `${this.objects.push(parts)} 0 R`;
  }

  /**
   * @param {string} entries of its dictionary
   * @param {Uint8Array<ArrayBuffer>} bytes
   */
  stream(entries, bytes) {
    return this.add(`<< ${entries} /Length ${bytes.length} >>\nstream\n`, bytes, "\nendstream");
  }

  /**
   * A picture; colours and opacity of one that is no photograph lie in two streams.
   * @param {VectorMark} mark
   */
  async image({ image, isPhoto, isSmooth }) {
    const canvas = /** @type {HTMLCanvasElement} */ (image), { width, height } = canvas;
    const common = `/Type /XObject /Subtype /Image /Width ${width} /Height ${height} /BitsPerComponent 8`;
    if (isPhoto) {
      /** @type {any} */
      const jpeg = await new Promise((done) => canvas.toBlob(done, "image/jpeg", JPEG_QUALITY));
      return this.stream(`${common} /ColorSpace /DeviceRGB /Filter /DCTDecode`, new Uint8Array(await jpeg.arrayBuffer()));
    }
    const { data } = contextOf(canvas).getImageData(0, 0, width, height), opacity = data.filter((_, index) => index % 4 === 3);
    const smooth = `/Interpolate ${isSmooth} /Filter /FlateDecode`, isOpaque = opacity.every((part) => part === 255);
    const mask = isOpaque ? "" : `/SMask ${this.stream(`${common} /ColorSpace /DeviceGray ${smooth}`, await deflated(opacity))}`;
    return this.stream(`${common} /ColorSpace /DeviceRGB ${smooth} ${mask}`, await deflated(data.filter((_, index) => index % 4 < 3)));
  }

  /** @param {string} root */
  blob(root) {
    const parts = /** @type {(string | Uint8Array<ArrayBuffer>)[]} */ (["%PDF-1.4\n"]);
    const lengthNow = () => parts.reduce((sum, part) => sum + part.length, 0);
    const places = this.objects.map((object, index) => {
      const start = lengthNow();
      parts.push(`${index + 1} 0 obj\n`, ...object, "\nendobj\n");
      return `${String(start).padStart(10, "0")} 00000 n \n`;
    });
    const start = lengthNow(), count = places.length + 1;
    parts.push(`xref\n0 ${count}\n0000000000 65535 f \n${places.join("")}`);
    parts.push(`trailer\n<< /Size ${count} /Root ${root} >>\nstartxref\n${start}\n%%EOF\n`);
    return new Blob(parts, { type: "application/pdf" });
  }
}

/** @param {PathStep[]} path */
const pdfPath = (path) => path.map(([step, ...place]) => `${place.map(rounded).join(" ")} ${step.toLowerCase()}`).join(" ");

/**
 * One page.
 * @param {VectorMark[]} marks
 * @param {number} width
 * @param {number} height
 * @param {(text: string, isBold?: boolean) => number} measure the width of a text of 12 units
 */
export async function vectorPdf(marks, width, height, measure) {
  const file = new PdfFile(), lines = [`${POINTS_PER_UNIT} 0 0 ${-POINTS_PER_UNIT} 0 ${rounded(POINTS_PER_UNIT * height)} cm`];
  const images = /** @type {string[]} */ ([]), alphas = new Set();
  const opacity = (/** @type {number} */ alpha) => {
    alphas.add(Math.round(100 * alpha));
    return `/A${Math.round(100 * alpha)} gs`;
  };
  for (const plain of marks) {
    const isFont = plain.text === undefined || pdfText(plain.text) !== null;
    const textWidth = plain.text === undefined ? 0 : measure(plain.text, plain.isBold) * plain.size / 12;
    const mark = isFont ? plain : pictureOfText(plain, textWidth), { image, path, text, fill, stroke, alpha } = mark;
    lines.push("q", mark.clipping ? `${pdfPath(mark.clipping)} W n` : "");
    const channels = channelsOf(fill ?? stroke ?? "black"), colour = channels.slice(0, 3).map((each) => rounded(each / 255)).join(" ");
    const dash = mark.dash.map(rounded).join(" ");
    lines.push(opacity(alpha * channels[3]), `${colour} ${fill ? "rg" : "RG"} ${rounded(mark.lineWidth)} w [${dash}] 0 d`);
    if (image) {
      const { x, y, width: across, height: down } = mark;
      lines.push(`${[across, 0, 0, -down, x, y + down].map(rounded).join(" ")} cm /I${images.length} Do`);
      images.push(await file.image(mark));
    } else if (path) lines.push(pdfPath(path), fill ? (mark.rule ? "f*" : "f") : "S");
    else lines.push(`BT /${mark.isBold ? "B" : "F"} ${mark.size} Tf ${fill ? 0 : 1} Tr 1 0 0 -1 `
      + `${rounded(mark.x - mark.anchor * textWidth)} ${rounded(mark.y)} Tm <${pdfText(text ?? "")}> Tj ET`);
    lines.push("Q");
  }
  const font = (/** @type {string} */ name) => `<< /Type /Font /Subtype /Type1 /BaseFont /${name} /Encoding /WinAnsiEncoding >>`;
  const resources = `<< /Font << /F ${font("Helvetica")} /B ${font("Helvetica-Bold")} >> `
    + `/ExtGState << ${[...alphas].map((alpha) => `/A${alpha} << /ca ${alpha / 100} /CA ${alpha / 100} >>`).join(" ")} >> `
    + `/XObject << ${images.map((reference, index) => `/I${index} ${reference}`).join(" ")} >> >>`;
  const content = file.stream("/Filter /FlateDecode", await deflated(lines.filter(Boolean).join("\n")));
  const box = [width, height].map((length) => rounded(POINTS_PER_UNIT * length)).join(" ");
  // The page comes next, and after it the list of pages, to which it refers.
  const pages = `${file.objects.length + 2} 0 R`;
  const page = file.add(`<< /Type /Page /Parent ${pages} /MediaBox [0 0 ${box}] /Resources ${resources} /Contents ${content} >>`);
  file.add(`<< /Type /Pages /Kids [${page}] /Count 1 >>`);
  return file.blob(file.add(`<< /Type /Catalog /Pages ${pages} >>`));
}
