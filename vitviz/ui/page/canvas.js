// The picture with a map over it.

import { faded, interpolated, paintPixels } from "./colours.js";
import { contextOf, create } from "./dom.js";

const DIMMED = "rgba(0, 0, 0, 0.65)";
const GRID_LINE = "rgba(255, 255, 255, 0.35)";
// The largest share of the screen's height, and on a high one the pixels that it leaves to what stands around.
const MAX_HEIGHT_SHARE = 0.53, PROJECTED_SHARE = 0.62, AROUND = 465, AROUND_PROJECTED = 360;
const PHONE_SHARE = 0.43, PHONE_WIDTH = 720;
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
  const availableWidth = canvas.parentElement?.clientWidth ?? 0;
  if (!availableWidth) return;
  const scale = Math.min(2, window.devicePixelRatio || 1);
  const [share, around] = canvas.closest(".vx-projected") ? [PROJECTED_SHARE, AROUND_PROJECTED]
    : innerWidth > PHONE_WIDTH ? [MAX_HEIGHT_SHARE, AROUND] : [PHONE_SHARE, Infinity];
  const cssWidth = Math.min(availableWidth, Math.max(share * innerHeight, innerHeight - around) / ratio);
  canvas.style.width = cssWidth < availableWidth ? `${cssWidth}px` : "";
  const width = Math.max(1, Math.round(cssWidth * scale)), height = Math.max(1, Math.round(width * ratio));
  if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
}

/**
 * Darken a rectangle and cross it out: what it stands for is hidden from the model.
 * @param {CanvasRenderingContext2D} context
 * @param {[number, number, number, number]} box
 * @param {number} lineWidth
 */
export function crossOut(context, [x, y, width, height], lineWidth) {
  Object.assign(context, { fillStyle: "rgba(0, 0, 0, 0.8)", strokeStyle: "white", lineWidth }).fillRect(x, y, width, height);
  context.beginPath();
  for (const [from, to] of [[y, y + height], [y + height, y]]) {
    context.moveTo(x, from);
    context.lineTo(x + width, to);
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
    context.drawImage(this.picture, 0, 0, width, height);
    this.dimUnseen(context, width, height, [left, top, right, bottom]);
    if (values) {
      this.colour(scale.places(values), look.fade ? faded(colours, scale.signed) : colours, look.smooth);
      context.save();
      context.beginPath();
      context.rect(0, 0, width * (look.part ?? 1), height);
      context.clip();
      context.globalAlpha = look.opacity ?? 1;
      context.imageSmoothingEnabled = look.smooth ?? false;
      context.drawImage(this.map, left, top, right - left, bottom - top);
      context.restore();
      if (look.part !== undefined) this.drawDivider(context, width * look.part, height);
    }
    if (look.grid) this.drawGrid(context, [left, top, right, bottom]);
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
    for (const [style, width] of /** @type {[string, number][]} */ ([["black", 4], ["white", 2]])) {
      context.fillStyle = style;
      context.fillRect(x - width / 2, 0, width, height);
    }
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
    const { rows, columns } = this.facts;
    context.strokeStyle = GRID_LINE;
    context.lineWidth = 1;
    context.beginPath();
    for (let row = 0; row <= rows; row++) {
      const y = top + row * (bottom - top) / rows;
      context.moveTo(left, y);
      context.lineTo(right, y);
    }
    for (let column = 0; column <= columns; column++) {
      const x = left + column * (right - left) / columns;
      context.moveTo(x, top);
      context.lineTo(x, bottom);
    }
    context.stroke();
    const across = (right - left) / columns, down = (bottom - top) / rows;
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
    for (let column = 1; column < this.facts.columns; column++) write(String(column), left + (column + 0.5) * across, top + 2);
    Object.assign(context, { textAlign: "left", textBaseline: "middle" });
    for (let row = 0; row < this.facts.rows; row++) write(String(row), left + 3, top + (row + 0.5) * down);
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
    for (const [style, width] of [["black", 2.5 * stroke], [colour, stroke]]) {
      context.strokeStyle = style;
      context.lineWidth = width;
      context.setLineDash(isDashed && style === colour ? [3 * stroke, 3 * stroke] : []);
      context.strokeRect(...rectangle);
    }
    context.setLineDash([]);
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
