// Many small pictures on one canvas, each below its title.

import { paintPixels } from "./colours.js";
import { contextOf, create, createCanvas, whiteCanvas } from "./dom.js";
import { clamped, range } from "./numbers.js";

const MOSAIC_GAP = 8, MOSAIC_NARROW_GAP = 3, MOSAIC_TITLE = 17, MOSAIC_MIN_WIDTH = 88, MOSAIC_MAX_HEIGHT = 640;
// The width of a saved one, in pixels.
const MOSAIC_SAVED_WIDTH = 1600;

export class Mosaic {
  /**
   * @param {MosaicCell[]} cells each with a title and paint(context, left, top, width, height)
   * @param {MosaicOptions} options ratio (height by width) of the cells, a fixed number of columns, the maximum width of a cell,
   *   say(index, across, down) describes a point of a cell, act(index, across, down) handles a click
   */
  constructor(cells, { say, act, ...shape }) {
    this.cells = cells;
    this.shape = shape;
    this.width = 0;
    this.canvas = create("canvas", { className: act ? "vx-acts" : "" });
    const readout = create("output", { className: "vx-readout" });
    this.parts = [this.canvas, readout];
    const atCell = (/** @type {any} */ event, /** @type {any} */ run) => {
      const under = this.cellUnder(event);
      return under && run?.(...under);
    };
    this.canvas.onpointermove = (event) => { readout.textContent = atCell(event, say) ?? ""; };
    this.canvas.onpointerleave = () => { readout.textContent = ""; };
    this.canvas.onclick = (event) => atCell(event, act);
  }

  /**
   * The rectangles of the cells, and the size of the mosaic, in pixels of the page.
   * @param {number} width
   */
  places(width) {
    const title = this.cells.some((each) => each.title) ? MOSAIC_TITLE : 0, count = this.cells.length;
    const { ratio, columns: fixed, maxWidth = 200 } = this.shape, gap = fixed ? MOSAIC_NARROW_GAP : MOSAIC_GAP;
    const fitting = Math.floor((width + MOSAIC_GAP) / (Math.min(maxWidth, MOSAIC_MIN_WIDTH) + MOSAIC_GAP));
    const columns = fixed ?? clamped(fitting, 1, count);
    const cellWidth = Math.min(maxWidth, MOSAIC_MAX_HEIGHT / ratio, (width - gap * (columns - 1)) / columns),
      cellHeight = cellWidth * ratio;
    const position = (/** @type {number} */ index) => [
      (index % columns) * (cellWidth + gap),
      title + Math.floor(index / columns) * (cellHeight + title + gap),
      cellWidth,
      cellHeight,
    ];
    return {
      cells: this.cells.map((/** @type {any} */ _, /** @type {number} */ index) => position(index)),
      height: Math.ceil(count / columns) * (cellHeight + title + gap) - gap,
      width: Math.min(count, columns) * (cellWidth + gap) - gap,
    };
  }

  /**
   * @param {number} width available on the page, @param ink the colour of titles
   * @param {string} ink
   */
  draw(width, ink) {
    const times = Math.min(2, window.devicePixelRatio || 1), { height, width: usedWidth } = this.places(width);
    this.width = width;
    Object.assign(this.canvas, { width: Math.max(1, Math.round(usedWidth * times)), height: Math.max(1, Math.round(height * times)) });
    Object.assign(this.canvas.style, { width: `${usedWidth}px`, height: `${height}px` });
    this.paint(contextOf(this.canvas), width, times, ink);
  }

  /**
   * @param {CanvasRenderingContext2D} context
   * @param {number} width
   * @param {any} times
   * @param {string} ink
   */
  paint(context, width, times, ink) {
    context.setTransform(times, 0, 0, times, 0, 0);
    Object.assign(context, { font: "12px system-ui, sans-serif", textBaseline: "bottom" });
    this.places(width).cells.forEach((/** @type {any} */ [left, top, cellWidth, cellHeight], /** @type {number} */ index) => {
      context.fillStyle = ink;
      context.fillText(this.cells[index].title, left, top - 2, cellWidth);
      this.cells[index].paint(context, left, top, cellWidth, cellHeight);
    });
  }

  /**
   * Index of the cell under the pointer, and the position in shares of its width and height; null between cells.
   * @param {any} event
   */
  cellUnder(event) {
    const edges = this.canvas.getBoundingClientRect(), x = event.clientX - edges.left, y = event.clientY - edges.top;
    const { cells } = this.places(this.width);
    const index = cells.findIndex(
      (/** @type {any} */ [left, top, cellWidth, cellHeight]) => x >= left && x < left + cellWidth && y >= top && y < top + cellHeight,
    );
    return index < 0 ? null : [index, (x - cells[index][0]) / cells[index][2], (y - cells[index][1]) / cells[index][3]];
  }

  /** The mosaic as a picture to save, on white. */
  picture() {
    const { width, height } = this.places(this.width),
      times = MOSAIC_SAVED_WIDTH / width,
      canvas = whiteCanvas(MOSAIC_SAVED_WIDTH, Math.round(height * times));
    this.paint(contextOf(canvas), this.width, times, "black");
    return canvas;
  }
}

/**
 * A canvas of one pixel for each row and column; `fill` writes the RGBA bytes.
 * @param {number} rows
 * @param {number} columns
 * @param {any} fill
 */
export function filledRaster(rows, columns, fill) {
  const canvas = createCanvas(columns, rows), context = contextOf(canvas), image = context.createImageData(columns, rows);
  fill(image.data);
  context.putImageData(image, 0, 0);
  return canvas;
}

/**
 * Colours "row column" as a small canvas; `colourOf` returns red, green and blue of an index.
 * @param {number} rows
 * @param {number} columns
 * @param {any} colourOf
 */
export const rasterOf = (rows, columns, colourOf) => filledRaster(rows, columns, (/** @type {Uint8ClampedArray} */ bytes) => {
  for (const index of range(rows * columns)) bytes.set([...colourOf(index), 255], 4 * index);
});

/**
 * Values "row column" as a small canvas.
 * @param {Float32Array} values
 * @param {number} rows
 * @param {number} columns
 * @param {FittedScale} scale
 * @param {ColourTable} table
 */
export const rasterOfValues = (values, rows, columns, scale, table) =>
  filledRaster(rows, columns, (/** @type {Uint8ClampedArray} */ bytes) => {
    paintPixels(scale.places(values), rows, columns, table, new Uint32Array(bytes.buffer), columns, 0);
  });

/**
 * @param {CanvasRenderingContext2D} context
 * @param {any} raster
 * @param {any} left
 * @param {any} top
 * @param {number} width
 * @param {number} height
 */
export function drawRaster(context, raster, left, top, width, height) {
  context.imageSmoothingEnabled = false;
  context.drawImage(raster, left, top, width, height);
}
