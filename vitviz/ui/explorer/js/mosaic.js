// Many small pictures on one canvas, each below its title.

const MOSAIC_GAP = 8, MOSAIC_TITLE = 17, MOSAIC_LEAST = 88;
// The width of a saved one, in pixels.
const MOSAIC_SAVED = 1600;

class Mosaic {
  /**
   * @param cells each with a title and paint(context, left, top, width, height)
   * @param options ratio (height by width) of each cell, the number of columns where it is fixed, the most that a cell
   *   is wide, say(place, across, down) in words what is at a point of a cell, act(place, across, down) on a click,
   *   left() when the pointer leaves
   */
  constructor(cells, { ratio, columns = null, most = 200, say, act = null, left = null }) {
    Object.assign(this, { cells, ratio, columns, most, say, act, left, width: 0 });
    this.hasTitles = cells.some(({ title }) => title);
    this.canvas = create("canvas");
    this.readout = create("output", { className: "vx-readout" });
    this.parts = [this.canvas, this.readout];
    if (act) this.canvas.classList.add("vx-acts");
    const told = (event, run, nothing) => {
      const under = this.under(event);
      return under ? run?.(...under) : nothing;
    };
    this.canvas.onpointermove = (event) => { this.readout.textContent = told(event, this.say, "") ?? ""; };
    this.canvas.onpointerleave = () => {
      this.readout.textContent = "";
      left?.();
    };
    this.canvas.onclick = (event) => told(event, act);
  }

  /** Where each cell is, in pixels of the page. */
  places(width) {
    const title = this.hasTitles ? MOSAIC_TITLE : 0, count = this.cells.length;
    const columns = this.columns ?? Math.max(1, Math.min(count, Math.floor((width + MOSAIC_GAP) / (Math.min(this.most, MOSAIC_LEAST) + MOSAIC_GAP))));
    const gap = this.columns ? Math.min(MOSAIC_GAP, 3) : MOSAIC_GAP;
    const wide = Math.min(this.most, (width - gap * (columns - 1)) / columns), high = wide * this.ratio;
    const at = (index) => [index % columns * (wide + gap), title + Math.floor(index / columns) * (high + title + gap), wide, high];
    return { cells: this.cells.map((_, index) => at(index)), height: Math.ceil(count / columns) * (high + title + gap) - gap, width: Math.min(count, columns) * (wide + gap) - gap };
  }

  /** @param width that there is on the page, @param ink the colour of titles */
  draw(width, ink) {
    const times = Math.min(2, window.devicePixelRatio || 1), { height, width: used } = this.places(width);
    Object.assign(this, { width });
    Object.assign(this.canvas, { width: Math.max(1, Math.round(used * times)), height: Math.max(1, Math.round(height * times)) });
    Object.assign(this.canvas.style, { width: `${used}px`, height: `${height}px` });
    this.paint(this.canvas.getContext("2d"), width, times, ink);
  }

  paint(context, width, times, ink) {
    context.setTransform(times, 0, 0, times, 0, 0);
    Object.assign(context, { font: "12px system-ui, sans-serif", textBaseline: "bottom" });
    this.places(width).cells.forEach(([left, top, wide, high], index) => {
      context.fillStyle = ink;
      context.fillText(this.cells[index].title, left, top - 2, wide);
      this.cells[index].paint(context, left, top, wide, high);
    });
  }

  /** Cell and place in it, in parts of its width and height, under the pointer; null between them. */
  under(event) {
    const edges = this.canvas.getBoundingClientRect(), x = event.clientX - edges.left, y = event.clientY - edges.top;
    const { cells } = this.places(this.width);
    const place = cells.findIndex(([left, top, wide, high]) => x >= left && x < left + wide && y >= top && y < top + high);
    return place < 0 ? null : [place, (x - cells[place][0]) / cells[place][2], (y - cells[place][1]) / cells[place][3]];
  }

  /** As a picture to save, on white. */
  picture() {
    const { width, height } = this.places(this.width), times = MOSAIC_SAVED / width, canvas = canvasOf(MOSAIC_SAVED, Math.round(height * times));
    const context = canvas.getContext("2d");
    Object.assign(context, { fillStyle: "white" }).fillRect(0, 0, canvas.width, canvas.height);
    this.paint(context, this.width, times, "black");
    return canvas;
  }
}

/** Colours "row column" as a small canvas; `colourOf` gives red, green and blue of an index. */
function rasterOf(rows, columns, colourOf) {
  const canvas = canvasOf(columns, rows), context = canvas.getContext("2d");
  const image = context.createImageData(columns, rows);
  for (let index = 0; index < rows * columns; index++) image.data.set([...colourOf(index), 255], 4 * index);
  context.putImageData(image, 0, 0);
  return canvas;
}

/** Values "row column" as a small canvas. */
function rasterOfValues(values, rows, columns, scale, table) {
  const canvas = canvasOf(columns, rows), context = canvas.getContext("2d");
  const image = context.createImageData(columns, rows);
  paint(scale.places(values), rows, columns, table, new Uint32Array(image.data.buffer), columns, 0);
  context.putImageData(image, 0, 0);
  return canvas;
}

function drawRaster(context, raster, left, top, width, height) {
  context.imageSmoothingEnabled = false;
  context.drawImage(raster, left, top, width, height);
}
