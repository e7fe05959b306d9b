// The map of one token in every layer (rows) and head (columns); the first column fuses all heads.

import { fuse } from "./attention.js";
import { crossOut } from "./canvas.js";
import { paintPixels } from "./colours.js";
import { contextOf, createCanvas, whiteCanvas } from "./dom.js";
import { range, sum } from "./numbers.js";

const SHEET_MARGIN = { left: 40, top: 20 };
const SHEET_FONT = "12px \"Instrument Sans\", system-ui, sans-serif";
// Between cells, in pixels of the page.
const SHEET_GAP = 3;
// The least and the greatest height of a cell by its width; maps of longer pictures are stretched to it.
export const SHEET_RATIOS = [0.25, 2];
// A cell with a side below this, in pixels of the page, is magnified under the pointer.
const MIN_CELL = 20, CELL_TIMES = 4;
// In pixels of the page: what the window leaves above and below it, so that it stays in sight together with the picture.
const AROUND_SHEET = 300, MIN_SHEET = 400;
// How much the prediction falls or rises without a head.
const FALL_COLOUR = "#e8590c", RISE_COLOUR = "#1c7ed6";
// The chosen cell's frame, as that of the film: its light edges, the wider stroke, part it from every colour map.
/** @type {[string, number][]} */
const FRAME_STROKES = [["white", 7], ["#4338ca", 3]];
// The longest slice of work: the picture has priority.
const SHEET_SLICE_MS = 8;

export class Sheet {
  /**
   * @param {HTMLCanvasElement} canvas
   * @param {Attention} attention
   */
  constructor(canvas, attention) {
    this.canvas = canvas;
    this.attention = attention;
    /** @type {any} */
    this.request = null;
    this.timer = 0;
    /** @type {HTMLCanvasElement | null} */
    this.enlarged = null;
    // Of the marked patches, by layer and head, once the sheet is drawn; null for a layer that is not loaded.
    /** @type {(number[] | null)[] | null} */
    this.shares = null;
    const { layers, heads, rows, columns } = attention.facts;
    this.columnsOfCells = heads + 1;
    // In pixels of the page, once the sheet is drawn.
    this.cellWidth = 0;
    this.cellHeight = 0;
    this.patches = rows * columns;
    this.values = new Float32Array(layers * this.columnsOfCells * this.patches);
    this.loadedCells = new Array(layers * this.columnsOfCells).fill(false);
    this.raster = createCanvas(this.columnsOfCells * columns, layers * rows);
    this.image = contextOf(this.raster).createImageData(this.raster.width, this.raster.height);
    this.pixels = new Uint32Array(this.image.data.buffer);
  }

  /**
   * Compute and draw a request in slices; it replaces the previous one.
   * @param {any} request
   */
  show(request) {
    const stale =
      !this.request ||
      ["attention", "token", "direction", "fusion", "loaded"].some((key) => this.request[key] !== request[key]);
    this.request = request;
    this.enlarged = this.shares = null;
    clearTimeout(this.timer);
    // First the values of every layer, then their colours.
    this.nextStep = stale ? 0 : Math.min(this.nextStep, this.attention.facts.layers);
    this.schedule();
  }

  /** Let the screen show the picture before the next slice. */
  schedule() {
    this.timer = setTimeout(() => this.step(), 0);
  }

  step() {
    const started = performance.now(), { layers } = this.attention.facts;
    while (this.nextStep < 2 * layers && performance.now() - started < SHEET_SLICE_MS) {
      if (this.nextStep < layers) this.compute(this.nextStep);
      else this.colour(this.nextStep - layers);
      this.nextStep += 1;
    }
    if (this.nextStep < 2 * layers) this.schedule();
    else this.draw();
  }

  /**
   * The values of one cell: "patch".
   * @param {number} cell
   */
  valuesOf(cell) {
    return this.values.subarray(cell * this.patches, (cell + 1) * this.patches);
  }

  /**
   * Compute all heads of a layer and their fusion.
   * @param {number} layer
   */
  compute(layer) {
    const { token, direction, fusion } = this.request, { prefix, facts: { heads } } = this.attention;
    const firstCell = layer * this.columnsOfCells, fused = this.valuesOf(firstCell).fill(fusion === "min" ? Infinity : 0);
    for (const head of range(heads)) {
      const weights = this.attention.map(layer, head, token, direction)?.subarray(prefix);
      this.loadedCells.fill(Boolean(weights), firstCell, firstCell + this.columnsOfCells);
      if (!weights) return;
      this.valuesOf(firstCell + 1 + head).set(weights);
      fuse(fusion, fused, weights, heads);
    }
  }

  /**
   * Colour the pixels of a layer; before the first one, fit the shared scale if there is one.
   * @param {number} layer
   */
  colour(layer) {
    const { rows, columns } = this.attention.facts, { colours, shared, fittedScale } = this.request;
    if (layer === 0) {
      const filled = [...this.loadedCells.keys()].filter((cell) => this.loadedCells[cell]);
      this.sharedScale = shared && filled.length ? fittedScale(filled.map((cell) => this.valuesOf(cell))) : null;
    }
    if (!this.loadedCells[layer * this.columnsOfCells]) return;
    for (const column of range(this.columnsOfCells)) {
      const values = this.valuesOf(layer * this.columnsOfCells + column), scale = this.sharedScale ?? fittedScale([values]);
      paintPixels(
        scale.places(values),
        rows,
        columns,
        colours,
        this.pixels,
        this.raster.width,
        layer * rows * this.raster.width + column * columns,
      );
    }
  }

  /** In every layer and head, the share of the token's attention to all patches that lies on the marked ones. */
  markedShares() {
    const { layers, heads } = this.attention.facts, { marked } = this.request;
    return range(layers).map((layer) => !this.loadedCells[layer * this.columnsOfCells] ? null : range(heads).map((head) => {
      const values = this.valuesOf(layer * this.columnsOfCells + 1 + head);
      return sum(marked.map((/** @type {number} */ patch) => values[patch])) / (sum(values) || 1);
    }));
  }

  draw() {
    const { layers } = this.attention.facts, { ratio, marked, onDraw } = this.request;
    if (marked.length) this.shares = this.markedShares();
    onDraw();
    contextOf(this.raster).putImageData(this.image, 0, 0);
    const scale = Math.min(2, window.devicePixelRatio || 1), cssWidth = this.canvas.clientWidth;
    if (cssWidth < 1) return;
    Object.assign(this, this.cells(Math.min(cssWidth, this.widthOf(Math.max(MIN_SHEET, innerHeight - AROUND_SHEET), ratio)), ratio));
    const width = Math.round(cssWidth * scale), height = Math.ceil((SHEET_MARGIN.top + layers * this.cellHeight) * scale);
    if (this.cellWidth < 1) return;
    Object.assign(this.canvas, { width, height });
    this.canvas.style.height = `${height / scale}px`;
    contextOf(this.canvas).scale(scale, scale);
    this.drawOn(contextOf(this.canvas), this, this.request.ink);
  }

  /**
   * The size of a cell in a sheet of this width.
   * @param {number} width
   * @param {number} ratio
   */
  cells(width, ratio) {
    const cellWidth = (width - SHEET_MARGIN.left) / this.columnsOfCells;
    return { cellWidth, cellHeight: Math.max(4, (cellWidth - SHEET_GAP) * ratio) + SHEET_GAP };
  }

  /**
   * The width of a sheet of this height.
   * @param {number} height
   * @param {number} ratio
   */
  widthOf(height, ratio) {
    const cellHeight = (height - SHEET_MARGIN.top) / this.attention.facts.layers;
    return SHEET_MARGIN.left + this.columnsOfCells * ((cellHeight - SHEET_GAP) / ratio + SHEET_GAP);
  }

  /**
   * The height of a sheet of this width.
   * @param {number} width
   */
  heightOf(width) {
    return SHEET_MARGIN.top + this.attention.facts.layers * this.cells(width, this.request.ratio).cellHeight;
  }

  /**
   * The sheet as it is now, without a mark on the chosen cell; it stays so when another token is shown.
   * @returns {Sheet}
   */
  copy() {
    const raster = createCanvas(this.raster.width, this.raster.height), request = { ...this.request, layer: undefined };
    contextOf(raster).drawImage(this.raster, 0, 0);
    return Object.assign(Object.create(Sheet.prototype), this, { raster, request, shares: null, loadedCells: [...this.loadedCells] });
  }

  /**
   * The sheet on a new canvas of this width, black on white.
   * @param {number} width
   */
  picture(width) {
    const canvas = whiteCanvas(width, Math.ceil(this.heightOf(width)));
    this.drawOn(contextOf(canvas), this.cells(width, this.request.ratio), "black");
    return canvas;
  }

  /**
   * @param {CanvasRenderingContext2D} context
   * @param {any} options
   * @param {string} ink
   */
  drawOn(context, { cellWidth, cellHeight }, ink) {
    const { layers, rows, columns } = this.attention.facts, { left, top } = SHEET_MARGIN, { layer, head } = this.request;
    const width = cellWidth - SHEET_GAP, height = cellHeight - SHEET_GAP;
    context.imageSmoothingEnabled = false;
    // Between the cells, so that dark ones end somewhere on a dark page, too.
    context.fillStyle = "rgba(128, 128, 128, 0.3)";
    context.fillRect(left, top, this.columnsOfCells * cellWidth - SHEET_GAP, layers * cellHeight - SHEET_GAP);
    this.loadedCells.forEach((isLoaded, cell) => {
      const row = Math.floor(cell / this.columnsOfCells), column = cell % this.columnsOfCells;
      const x = left + column * cellWidth, y = top + row * cellHeight;
      if (isLoaded) context.drawImage(this.raster, column * columns, row * rows, columns, rows, x, y, width, height);
      else Object.assign(context, { fillStyle: "rgba(128, 128, 128, 0.3)" }).fillRect(x, y, width, height);
      if (column > 0) this.markHead(context, row, column - 1, [x, y, width, height]);
    });
    Object.assign(context, { fillStyle: ink, font: SHEET_FONT, textBaseline: "middle", textAlign: "right" });
    const [rowStep, columnStep] = [Math.ceil(13 / cellHeight), Math.ceil(20 / cellWidth)];
    for (const row of range(layers)) if (row % rowStep === 0) context.fillText(String(row), left - 5, top + (row + 0.5) * cellHeight);
    context.fillText("layer", left - 5, top - 8);
    context.textAlign = "center";
    const names = [this.request.fusion, cellWidth > 48 ? "head 0" : "0", ...range(this.columnsOfCells).slice(1)];
    for (const column of range(this.columnsOfCells)) if (column ? (column - 1) % columnStep === 0 : cellWidth >= 22)
      context.fillText(names[column], left + (column + 0.5) * cellWidth, top - 8);
    if (layer === undefined) return;
    const frameColumn = typeof head === "number" ? head + 1 : 0;
    const x = left + frameColumn * cellWidth - SHEET_GAP / 2, y = top + layer * cellHeight - SHEET_GAP / 2;
    for (const [strokeStyle, lineWidth] of FRAME_STROKES)
      Object.assign(context, { strokeStyle, lineWidth }).strokeRect(x, y, cellWidth, cellHeight);
  }

  /**
   * Cross out a head that is off, and underline one by the change without it, or by its attention to the marked patches.
   * @param {CanvasRenderingContext2D} context
   * @param {number} layer
   * @param {number} head
   * @param {[number, number, number, number]} box
   */
  markHead(context, layer, head, [x, y, width, height]) {
    const { off } = this.request, drops = this.request.drops ?? this.shares, drop = drops?.[layer]?.[head];
    if (off.some((/** @type {[number, number]} */ pair) => pair[0] === layer && pair[1] === head))
      crossOut(context, [x, y, width, height], 1.5);
    if (!drop) return;
    const share = Math.abs(drop) / Math.max(...drops.flat().map(Math.abs)), thick = Math.max(3, height / 7);
    context.fillStyle = drop > 0 ? FALL_COLOUR : RISE_COLOUR;
    context.fillRect(x, y + height - thick, width * share, thick);
  }

  /**
   * The magnified cell under a pointer, for the lens; null where cells are large enough.
   * @param {{ layer: number, head: Head } | null} cell
   * @returns {[() => HTMLCanvasElement, [number, number], number] | null}
   */
  lensOf(cell) {
    if (!cell || Math.min(this.cellWidth, this.cellHeight) - SHEET_GAP >= MIN_CELL) return null;
    const width = Math.round(CELL_TIMES * this.canvas.clientWidth), { cellWidth, cellHeight } = this.cells(width, this.request.ratio);
    const column = typeof cell.head === "number" ? cell.head + 1 : 0;
    const centre = [SHEET_MARGIN.left + (column + 0.5) * cellWidth, SHEET_MARGIN.top + (cell.layer + 0.5) * cellHeight];
    return [() => (this.enlarged ??= this.picture(width)), /** @type {[number, number]} */ (centre), 1];
  }

  /**
   * Layer and head (or the fusion) at a point of the element; null outside the cells.
   * @param {number} x
   * @param {number} y
   */
  cellAt(x, y) {
    const column = Math.floor((x - SHEET_MARGIN.left) / this.cellWidth);
    const layer = Math.floor((y - SHEET_MARGIN.top) / this.cellHeight);
    const isInside = column >= 0 && column < this.columnsOfCells && layer >= 0 && layer < this.attention.facts.layers;
    return isInside ? { layer, head: column === 0 ? this.request.fusion : column - 1 } : null;
  }
}
