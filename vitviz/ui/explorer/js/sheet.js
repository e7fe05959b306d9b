// One token in every layer (rows) and head (columns), the heads' fusion before them.

const SHEET_MARGIN = { left: 26, top: 18 };
// Between cells, in pixels of the page.
const SHEET_GAP = 3;
// Seen on every colour map, in both themes.
const SHEET_CHOSEN = "#f76707";
// So long at a time, in milliseconds: the picture comes first.
const SHEET_SLICE = 8;

class Sheet {
  constructor(canvas, attention) {
    Object.assign(this, { canvas, attention, wanted: null, timer: 0 });
    const { layers, heads, rows, columns } = attention.facts;
    this.columnsOfCells = heads + 1;
    this.patches = rows * columns;
    this.values = new Float32Array(layers * this.columnsOfCells * this.patches);
    this.filled = new Array(layers * this.columnsOfCells).fill(false);
    this.raw = canvasOf(this.columnsOfCells * columns, layers * rows);
    this.image = this.raw.getContext("2d").createImageData(this.raw.width, this.raw.height);
    this.pixels = new Uint32Array(this.image.data.buffer);
  }

  /** Compute and draw, a slice at a time; what was wanted before is given up. */
  show(wanted) {
    const stale = !this.wanted || ["attention", "token", "direction", "fusion", "loaded"].some((key) => this.wanted[key] !== wanted[key]);
    this.wanted = wanted;
    clearTimeout(this.timer);
    // First the values of every layer, then their colours.
    this.next = stale ? 0 : Math.min(this.next, this.attention.facts.layers);
    this.later();
  }

  /** The screen shows the picture before anything is done for this one. */
  later() {
    this.timer = setTimeout(() => this.step(), 0);
  }

  step() {
    const started = performance.now(), { layers } = this.attention.facts;
    while (this.next < 2 * layers && performance.now() - started < SHEET_SLICE) {
      if (this.next < layers) this.compute(this.next);
      else this.colour(this.next - layers);
      this.next += 1;
    }
    if (this.next < 2 * layers) this.later();
    else this.draw();
  }

  /** The values of one cell: "patch". */
  valuesOf(place) {
    return this.values.subarray(place * this.patches, (place + 1) * this.patches);
  }

  /** All heads of a layer, and of these their fusion. */
  compute(layer) {
    const { token, direction, fusion } = this.wanted, { prefix, facts: { heads } } = this.attention;
    const first = layer * this.columnsOfCells, fused = this.valuesOf(first).fill(fusion === "min" ? Infinity : 0);
    for (let head = 0; head < heads; head++) {
      const weights = this.attention.map(layer, head, token, direction);
      this.filled.fill(Boolean(weights), first, first + this.columnsOfCells);
      if (!weights) return;
      this.valuesOf(first + 1 + head).set(weights.subarray(prefix));
      FUSIONS[fusion](fused, this.valuesOf(first + 1 + head), heads);
    }
  }

  /** The pixels of a layer; with the first one, the scale of all where they are to have the same. */
  colour(layer) {
    const { rows, columns } = this.attention.facts, { colours, shared, fittedScale } = this.wanted;
    if (layer === 0) {
      const filled = [...this.filled.keys()].filter((place) => this.filled[place]);
      this.common = shared && filled.length ? fittedScale(filled.map((place) => this.valuesOf(place))) : null;
    }
    if (!this.filled[layer * this.columnsOfCells]) return;
    for (let column = 0; column < this.columnsOfCells; column++) {
      const values = this.valuesOf(layer * this.columnsOfCells + column), scale = this.common ?? fittedScale([values]);
      paint(scale.places(values), rows, columns, colours, this.pixels, this.raw.width, layer * rows * this.raw.width + column * columns);
    }
  }

  draw() {
    const { layers } = this.attention.facts, { ratio } = this.wanted;
    this.raw.getContext("2d").putImageData(this.image, 0, 0);
    const scale = Math.min(2, window.devicePixelRatio || 1), shown = this.canvas.clientWidth;
    if (shown < 1) return;
    Object.assign(this, this.cells(shown, ratio));
    const width = Math.round(shown * scale), height = Math.ceil((SHEET_MARGIN.top + layers * this.cellHeight) * scale);
    if (this.cellWidth < 1) return;
    Object.assign(this.canvas, { width, height });
    this.canvas.style.height = `${height / scale}px`;
    this.onto(this.canvas.getContext("2d"), scale, this, this.wanted.ink);
  }

  /** The size of a cell where the whole sheet is so wide. */
  cells(width, ratio) {
    const cellWidth = (width - SHEET_MARGIN.left) / this.columnsOfCells;
    return { cellWidth, cellHeight: Math.max(4, (cellWidth - SHEET_GAP) * ratio) + SHEET_GAP };
  }

  /** The sheet on a canvas of its own, so wide, black on white. */
  picture(width) {
    const cells = this.cells(width, this.wanted.ratio);
    const canvas = canvasOf(width, Math.ceil(SHEET_MARGIN.top + this.attention.facts.layers * cells.cellHeight));
    const context = canvas.getContext("2d");
    Object.assign(context, { fillStyle: "white" }).fillRect(0, 0, canvas.width, canvas.height);
    this.onto(context, 1, cells, "black");
    return canvas;
  }

  onto(context, scale, { cellWidth, cellHeight }, ink) {
    const { layers, rows, columns } = this.attention.facts, { left, top } = SHEET_MARGIN, { layer, head } = this.wanted;
    const width = cellWidth - SHEET_GAP, height = cellHeight - SHEET_GAP;
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.imageSmoothingEnabled = false;
    this.filled.forEach((isFilled, place) => {
      const row = Math.floor(place / this.columnsOfCells), column = place % this.columnsOfCells;
      const x = left + column * cellWidth, y = top + row * cellHeight;
      if (isFilled) context.drawImage(this.raw, column * columns, row * rows, columns, rows, x, y, width, height);
      else Object.assign(context, { fillStyle: "rgba(128, 128, 128, 0.3)" }).fillRect(x, y, width, height);
    });
    Object.assign(context, { fillStyle: ink, font: "11px system-ui, sans-serif", textBaseline: "middle", textAlign: "right" });
    const every = Math.ceil(13 / cellHeight);
    for (let row = 0; row < layers; row += every) context.fillText(row, left - 5, top + (row + 0.5) * cellHeight);
    context.textAlign = "center";
    const step = Math.ceil(20 / cellWidth);
    for (let column = 0; column < this.columnsOfCells; column += column === 0 ? 1 : step) {
      const name = column === 0 ? this.wanted.fusion : column - 1;
      if (column !== 0 || cellWidth >= 22) context.fillText(name, left + (column + 0.5) * cellWidth, top - 8);
    }
    if (layer === undefined) return;
    const chosen = typeof head === "number" ? head + 1 : 0;
    Object.assign(context, { strokeStyle: SHEET_CHOSEN, lineWidth: 3 });
    context.strokeRect(left + chosen * cellWidth - SHEET_GAP / 2, top + layer * cellHeight - SHEET_GAP / 2, cellWidth, cellHeight);
  }

  /** Layer and head (or the fusion) under a point of the element; null beside the cells. */
  cellAt(x, y) {
    const column = Math.floor((x - SHEET_MARGIN.left) / this.cellWidth);
    const layer = Math.floor((y - SHEET_MARGIN.top) / this.cellHeight);
    const inside = column >= 0 && column < this.columnsOfCells && layer >= 0 && layer < this.attention.facts.layers;
    return inside ? { layer, head: column === 0 ? this.wanted.fusion : column - 1 } : null;
  }
}
