// The picture with a map over it.

import { faded, interpolated, paintPixels } from "./colours.js";
import { contextOf, create, find } from "./dom.js";
import { clamped, range } from "./numbers.js";

const DIMMED = "rgba(0, 0, 0, 0.65)";
const GRID_LINE = "rgba(255, 255, 255, 0.35)";
// The stage: its width by its height, and its largest shares of the window's height; a picture of another shape stands in its middle.
const STAGE_RATIO = 1.5, STAGE_SHARE = 0.62, TALL_SHARE = 0.7, PHONE_SHARE = 0.43, PHONE_WIDTH = 720;
// In pixels of the page: what stands above and below the stage on the first screen, of which a tall window has enough.
const AROUND_STAGE = 350;
// Of a picture whose colour drains, as in vitviz/visualization/overlays.py.
const DRAINED_SATURATION = 0.4, DRAINED_BRIGHTNESS = 0.68, [red, green, blue] = [0.213, 0.715, 0.072];
// Rows and columns are numbered if patches have at least this many pixels.
const MIN_NUMBERED_PIXELS = 26;
// Interpolated values of a smooth map along the side of a patch.
const SMOOTH_STEPS = 8;

/**
 * Give a canvas the number of pixels that the screen shows of it; a hidden one keeps its own.
 * @param {HTMLCanvasElement} canvas
 * @param {number} ratio
 */
export function fitCanvas(canvas, ratio) {
  const holder = canvas.parentElement, availableWidth = holder?.clientWidth ?? 0;
  if (!holder || !availableWidth) return;
  const scale = Math.min(2, window.devicePixelRatio || 1), isStage = holder.classList.contains("vx-stage");
  const tall = clamped(1 - AROUND_STAGE / innerHeight, STAGE_SHARE, TALL_SHARE);
  const share = canvas.closest(".vx-projected") ? TALL_SHARE : innerWidth > PHONE_WIDTH ? tall : PHONE_SHARE;
  // The card of the tour takes its height from the stage, so that the film stays in sight.
  const available = Math.max(PHONE_SHARE * innerHeight, share * innerHeight - find("guide").offsetHeight),
    height = Math.round(Math.min(availableWidth / STAGE_RATIO, available));
  const cssWidth = isStage ? Math.min(availableWidth, height / ratio) : availableWidth;
  if (isStage) holder.style.height = `${height}px`;
  canvas.style.width = cssWidth < availableWidth ? `${cssWidth}px` : "";
  const width = Math.max(1, Math.round(cssWidth * scale)), pixels = Math.max(1, Math.round(width * ratio));
  if (canvas.width !== width || canvas.height !== pixels) Object.assign(canvas, { width, height: pixels });
}

/**
 * The picture paler and darker, under a map: only the map has strong colours.
 * @param {ImageBitmap} picture
 */
function drain(picture) {
  const canvas = new OffscreenCanvas(picture.width, picture.height);
  const context = /** @type {OffscreenCanvasRenderingContext2D} */ (canvas.getContext("2d"));
  context.drawImage(picture, 0, 0);
  const image = context.getImageData(0, 0, canvas.width, canvas.height), { data } = image;
  for (let pixel = 0; pixel < data.length; pixel += 4) {
    const luminance = red * data[pixel] + green * data[pixel + 1] + blue * data[pixel + 2];
    for (let channel = pixel; channel < pixel + 3; channel++)
      data[channel] = DRAINED_BRIGHTNESS * (DRAINED_SATURATION * data[channel] + (1 - DRAINED_SATURATION) * luminance);
  }
  context.putImageData(image, 0, 0);
  return canvas.transferToImageBitmap();
}

/**
 * Darken a rectangle and cross it out: what it stands for is hidden from the model.
 * @param {CanvasRenderingContext2D} context
 * @param {[number, number, number, number]} box
 * @param {number} lineWidth
 */
export function crossOut(context, [x, y, width, height], lineWidth) {
  Object.assign(context, { fillStyle: "rgba(0, 0, 0, 0.8)", strokeStyle: "white", lineWidth }).fillRect(x, y, width, height);
  strokeLines(context, [[x, y, x + width, y + height], [x, y + height, x + width, y]]);
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {number[][]} lines from where to where each goes
 */
function strokeLines(context, lines) {
  context.beginPath();
  for (const [x, y, toX, toY] of lines) {
    context.moveTo(x, y);
    context.lineTo(toX, toY);
  }
  context.stroke();
}

/** Draws pictures and maps of one analysis, on canvases of any size. */
export class Painter {
  /**
   * @param {Facts} facts
   * @param {ImageBitmap} picture
   */
  constructor(facts, picture) {
    this.facts = facts;
    this.picture = picture;
    this.map = create("canvas");
    /** @type {ImageBitmap | null} */
    this.pale = null;
    /** @type {Map<ImageBitmap, number[]>} */
    this.grounds = new Map();
  }

  get ratio() {
    return this.facts.height / this.facts.width;
  }

  /**
   * Draw a map over the picture, or the picture alone without values.
   * @param {Float32Array | null} values "patch"
   * @param {any} scale a FittedScale
   * @param {Look} look opacity, fade, smooth, grid, part (the share of the width that the map covers)
   * @param {HTMLCanvasElement} canvas
   * @param {any} colours
   */
  draw(canvas, values, scale, colours, look) {
    fitCanvas(canvas, this.ratio);
    this.paint(canvas, values, scale, colours, look);
  }

  /**
   * The same, without resizing the canvas.
   * @param {HTMLCanvasElement} canvas
   * @param {Float32Array | null} values
   * @param {any} scale
   * @param {any} colours
   * @param {Look} look
   */
  paint(canvas, values, scale, colours, look) {
    const context = contextOf(canvas), { width, height } = canvas;
    /** @returns {[number, number, number, number]} */
    const [left, top, right, bottom] = this.box(width, height);
    context.globalAlpha = 1;
    context.imageSmoothingEnabled = true;
    context.drawImage(this.pictureOf(look), 0, 0, width, height);
    this.dimUnseen(context, width, height, [left, top, right, bottom]);
    if ((values || look.raster) && !look.isBare) {
      // Of what is in or out, nothing lies between.
      const isSmooth = look.smooth && !values?.every((value) => value === 0 || value === 1);
      if (values) this.colour(scale.places(values), look.fade ? faded(colours, scale.signed) : colours, isSmooth);
      context.save();
      context.beginPath();
      context.rect(0, 0, width * (look.part ?? 1), height);
      context.clip();
      context.globalAlpha = look.opacity ?? 1;
      context.imageSmoothingEnabled = isSmooth ?? false;
      context.drawImage(look.raster ?? this.map, left, top, right - left, bottom - top);
      context.restore();
      if (look.part !== undefined) this.drawDivider(context, width * look.part, height);
    }
    if (look.grid) this.drawGrid(context, [left, top, right, bottom]);
  }

  /**
   * The mean colour of the picture as it is drawn.
   * @param {Look} look
   */
  ground(look) {
    const picture = this.pictureOf(look), known = this.grounds.get(picture);
    if (known) return known;
    const context = contextOf(create("canvas", { width: 1, height: 1 }));
    context.drawImage(picture, 0, 0, 1, 1);
    const mean = [...context.getImageData(0, 0, 1, 1).data.subarray(0, 3)];
    this.grounds.set(picture, mean);
    return mean;
  }

  /** @param {Look} look */
  pictureOf(look) {
    if (!look.drain) return this.picture;
    this.pale ??= drain(this.picture);
    return this.pale;
  }

  /**
   * Left, top, right and bottom edge of the model's input, on a canvas of this size.
   * @param {number} width
   * @param {number} height
   */
  box(width, height) {
    const [left, top, right, bottom] = this.facts.box, across = width / this.facts.width, down = height / this.facts.height;
    return [left * across, top * down, right * across, bottom * down];
  }

  /**
   * @param {any} positions
   * @param {ColourTable} colours
   * @param {any} smooth
   */
  colour(positions, colours, smooth) {
    const times = smooth ? SMOOTH_STEPS : 1, rows = this.facts.rows * times, columns = this.facts.columns * times;
    if (this.map.width !== columns || this.map.height !== rows) Object.assign(this.map, { width: columns, height: rows });
    const context = contextOf(this.map), image = context.createImageData(columns, rows);
    const filled = smooth ? interpolated(positions, this.facts.rows, this.facts.columns, times) : positions;
    paintPixels(filled, rows, columns, colours, new Uint32Array(image.data.buffer), columns, 0);
    context.putImageData(image, 0, 0);
  }

  /**
   * @param {CanvasRenderingContext2D} context
   * @param {number} x
   * @param {number} height
   */
  drawDivider(context, x, height) {
    for (const [fillStyle, width] of /** @type {[string, number][]} */ ([["black", 4], ["white", 2]]))
      Object.assign(context, { fillStyle }).fillRect(x - width / 2, 0, width, height);
  }

  /**
   * Dim everything outside the model's input, as one shape: four rectangles would leave seams.
   * @param {CanvasRenderingContext2D} context
   * @param {number} width
   * @param {number} height
   * @param {any} pair
   */
  dimUnseen(context, width, height, [left, top, right, bottom]) {
    context.fillStyle = DIMMED;
    context.beginPath();
    context.rect(0, 0, width, height);
    context.rect(left, top, right - left, bottom - top);
    context.fill("evenodd");
  }

  /**
   * @param {CanvasRenderingContext2D} context
   * @param {any} pair
   */
  drawGrid(context, [left, top, right, bottom]) {
    const { rows, columns } = this.facts, across = (right - left) / columns, down = (bottom - top) / rows;
    const heights = range(rows + 1).map((row) => top + row * down), places = range(columns + 1).map((column) => left + column * across);
    Object.assign(context, { strokeStyle: GRID_LINE, lineWidth: 1 });
    strokeLines(context, [...heights.map((y) => [left, y, right, y]), ...places.map((x) => [x, top, x, bottom])]);
    if (Math.min(across, down) >= MIN_NUMBERED_PIXELS) this.number(context, left, top, across, down);
  }

  /**
   * Number the columns along the upper edge, and the rows along the left one.
   * @param {CanvasRenderingContext2D} context
   * @param {any} left
   * @param {any} top
   * @param {number} across
   * @param {number} down
   */
  number(context, left, top, across, down) {
    Object.assign(context, { font: "11px system-ui, sans-serif", fillStyle: "white", strokeStyle: "black", lineWidth: 2.5 });
    const write = (/** @type {string} */ text, /** @type {any} */ x, /** @type {any} */ y) => {
      context.strokeText(text, x, y);
      context.fillText(text, x, y);
    };
    Object.assign(context, { textAlign: "center", textBaseline: "top" });
    for (const column of range(this.facts.columns).slice(1)) write(String(column), left + (column + 0.5) * across, top + 2);
    Object.assign(context, { textAlign: "left", textBaseline: "middle" });
    for (const row of range(this.facts.rows)) write(String(row), left + 3, top + (row + 0.5) * down);
  }

  /**
   * Left and top edge, width and height of a patch, on a canvas of this size.
   * @param {any} pair
   * @param {number} width
   * @param {number} height
   * @returns {[number, number, number, number]}
   */
  patchRectangle([row, column], width, height) {
    const [left, top, right, bottom] = this.box(width, height);
    const patchWidth = (right - left) / this.facts.columns, patchHeight = (bottom - top) / this.facts.rows;
    return [left + column * patchWidth, top + row * patchHeight, patchWidth, patchHeight];
  }

  /**
   * Outline a patch; the black edges on both sides of the colour are visible on any picture.
   * @param {HTMLCanvasElement} canvas
   * @param {Cell} cell
   * @param {any} colour
   * @param {any} stroke
   * @param {any=} isDashed
   */
  mark(canvas, cell, colour, stroke, isDashed = false) {
    const context = contextOf(canvas), rectangle = this.patchRectangle(cell, canvas.width, canvas.height);
    for (const [strokeStyle, lineWidth] of [["black", 2.5 * stroke], [colour, stroke]]) {
      context.setLineDash(isDashed && strokeStyle === colour ? [3 * stroke, 3 * stroke] : []);
      Object.assign(context, { strokeStyle, lineWidth }).strokeRect(...rectangle);
    }
    context.setLineDash([]);
  }

  /**
   * Where a line from one patch to another begins, bends and ends.
   * @param {Cell} from
   * @param {Cell} to
   * @param {number} width
   * @param {number} height
   */
  arc(from, to, width, height) {
    const [[x, y], [toX, toY]] = [from, to].map((cell) => this.centre(cell)), rise = 0.4 * Math.hypot(toX - x, toY - y);
    const places = [[x, y], [(x + toX) / 2, Math.max(0.02, Math.min(y, toY) - rise)], [toX, toY]];
    return places.map(([across, down]) => [across * width, down * height]);
  }

  /**
   * Cross out a patch.
   * @param {HTMLCanvasElement} canvas
   * @param {Cell} cell
   */
  cross(canvas, cell) {
    crossOut(contextOf(canvas), this.patchRectangle(cell, canvas.width, canvas.height), Math.max(1, canvas.width / 450));
  }

  /**
   * The centre of a patch, as shares of the picture's width and height.
   * @param {Cell} cell
   * @returns {[number, number]}
   */
  centre(cell) {
    const [left, top, width, height] = this.patchRectangle(cell, 1, 1);
    return [left + width / 2, top + height / 2];
  }

  /**
   * Row and column of the patch at a point, in shares of the canvas; null outside the model's input.
   * @param {number} across
   * @param {number} down
   * @returns {Cell | null}
   */
  cellAt(across, down) {
    const [left, top, right, bottom] = this.box(1, 1);
    const column = Math.floor((across - left) / (right - left) * this.facts.columns);
    const row = Math.floor((down - top) / (bottom - top) * this.facts.rows);
    const inside = row >= 0 && row < this.facts.rows && column >= 0 && column < this.facts.columns;
    return inside ? [row, column] : null;
  }
}

export const OUTLIER_COLOUR = "#ffd43b";
