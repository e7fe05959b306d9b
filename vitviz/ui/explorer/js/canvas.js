// The picture with a map over it.

const DIMMED = "rgba(0, 0, 0, 0.65)";
const GRID_LINE = "rgba(255, 255, 255, 0.35)";
// Of the height of the screen.
const TALLEST = 0.8;
// Rows and columns have their numbers where a patch is so many pixels large.
const NUMBERED = 26;
// Of a smooth map, so many values along the side of a patch.
const SMOOTH_STEPS = 8;

/** Give a canvas as many pixels as the screen shows of it; one that is not shown keeps its own. */
function fitted(canvas, ratio) {
  const room = canvas.parentElement.clientWidth;
  if (!room) return;
  const scale = Math.min(2, window.devicePixelRatio || 1);
  // A tall picture is not taller than the screen.
  const shown = Math.min(room, TALLEST * window.innerHeight / ratio);
  canvas.style.width = shown < room ? `${shown}px` : "";
  const width = Math.max(1, Math.round(shown * scale)), height = Math.max(1, Math.round(width * ratio));
  if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
}

/** Draws pictures and maps of one analysis, on canvases of any size. */
class Painter {
  constructor(facts, picture) {
    this.facts = facts;
    this.picture = picture;
    this.map = create("canvas");
  }

  get ratio() {
    return this.facts.height / this.facts.width;
  }

  /**
   * A map over the picture; the picture alone where there is no map.
   * @param values "patch"
   * @param scale a FittedScale
   * @param look opacity, fade, smooth, grid, the part of the width that the map covers, and the scale of lines and numbers
   */
  draw(canvas, values, scale, colours, look) {
    fitted(canvas, this.ratio);
    this.paint(canvas, values, scale, colours, look);
  }

  /** The same on a canvas as large as it is. */
  paint(canvas, values, scale, colours, look) {
    const context = canvas.getContext("2d"), { width, height } = canvas;
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
      context.globalAlpha = look.opacity;
      context.imageSmoothingEnabled = look.smooth;
      context.drawImage(this.map, left, top, right - left, bottom - top);
      context.restore();
      if (look.part !== undefined) this.drawDivider(context, width * look.part, height, look.scale ?? 1);
    }
    if (look.grid) this.drawGrid(context, [left, top, right, bottom], look.scale ?? 1);
  }

  /** What the model saw, on a canvas of this size. */
  box(width, height) {
    const [left, top, right, bottom] = this.facts.box, across = width / this.facts.width, down = height / this.facts.height;
    return [left * across, top * down, right * across, bottom * down];
  }

  colour(places, colours, smooth) {
    const times = smooth ? SMOOTH_STEPS : 1, rows = this.facts.rows * times, columns = this.facts.columns * times;
    if (this.map.width !== columns || this.map.height !== rows) Object.assign(this.map, { width: columns, height: rows });
    const context = this.map.getContext("2d"), image = context.createImageData(columns, rows);
    const shown = smooth ? interpolated(places, this.facts.rows, this.facts.columns, times) : places;
    paint(shown, rows, columns, colours, new Uint32Array(image.data.buffer), columns, 0);
    context.putImageData(image, 0, 0);
  }

  drawDivider(context, x, height, scale) {
    for (const [style, width] of [["black", 4], ["white", 2]]) {
      context.fillStyle = style;
      context.fillRect(x - width * scale / 2, 0, width * scale, height);
    }
  }

  /** In one piece: four rectangles would leave seams. */
  dimUnseen(context, width, height, [left, top, right, bottom]) {
    context.fillStyle = DIMMED;
    context.beginPath();
    context.rect(0, 0, width, height);
    context.rect(left, top, right - left, bottom - top);
    context.fill("evenodd");
  }

  drawGrid(context, [left, top, right, bottom], scale) {
    const { rows, columns } = this.facts;
    context.strokeStyle = GRID_LINE;
    context.lineWidth = scale;
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
    if (Math.min(across, down) >= NUMBERED * scale) this.number(context, left, top, across, down, scale);
  }

  /** The numbers of the columns along the upper edge, and of the rows along the left one. */
  number(context, left, top, across, down, scale) {
    const font = `${11 * scale}px system-ui, sans-serif`;
    Object.assign(context, { font, fillStyle: "white", strokeStyle: "black", lineWidth: 2.5 * scale });
    const write = (text, x, y) => {
      context.strokeText(text, x, y);
      context.fillText(text, x, y);
    };
    Object.assign(context, { textAlign: "center", textBaseline: "top" });
    for (let column = 1; column < this.facts.columns; column++) write(column, left + (column + 0.5) * across, top + 2 * scale);
    Object.assign(context, { textAlign: "left", textBaseline: "middle" });
    for (let row = 0; row < this.facts.rows; row++) write(row, left + 3 * scale, top + (row + 0.5) * down);
  }

  /** Outlines a patch; black on both sides of the colour is seen on everything. */
  mark(canvas, [row, column], colour, stroke, isDashed = false) {
    const context = canvas.getContext("2d"), [left, top, right, bottom] = this.box(canvas.width, canvas.height);
    const across = (right - left) / this.facts.columns, down = (bottom - top) / this.facts.rows;
    for (const [style, width] of [["black", 2.5 * stroke], [colour, stroke]]) {
      context.strokeStyle = style;
      context.lineWidth = width;
      context.setLineDash(isDashed && style === colour ? [3 * stroke, 3 * stroke] : []);
      context.strokeRect(left + column * across, top + row * down, across, down);
    }
    context.setLineDash([]);
  }

  /** Crosses out a patch. */
  cross(canvas, [row, column]) {
    const context = canvas.getContext("2d"), [left, top, right, bottom] = this.box(canvas.width, canvas.height);
    const across = (right - left) / this.facts.columns, down = (bottom - top) / this.facts.rows;
    const x = left + column * across, y = top + row * down;
    context.fillStyle = "rgba(0, 0, 0, 0.8)";
    context.fillRect(x, y, across, down);
    Object.assign(context, { strokeStyle: "white", lineWidth: Math.max(1, canvas.width / 450) });
    context.beginPath();
    for (const [from, to] of [[0, 1], [1, 0]]) {
      context.moveTo(x, y + from * down);
      context.lineTo(x + across, y + to * down);
    }
    context.stroke();
  }

  /** The middle of a patch, in parts of the picture's width and height. */
  centre([row, column]) {
    const [left, top, right, bottom] = this.box(1, 1), { rows, columns } = this.facts;
    return [left + (column + 0.5) / columns * (right - left), top + (row + 0.5) / rows * (bottom - top)];
  }

  /** Row and column of the patch under a point, in parts of the canvas; null where the model did not see. */
  cellAt(across, down) {
    const [left, top, right, bottom] = this.box(1, 1);
    const column = Math.floor((across - left) / (right - left) * this.facts.columns);
    const row = Math.floor((down - top) / (bottom - top) * this.facts.rows);
    const inside = row >= 0 && row < this.facts.rows && column >= 0 && column < this.facts.columns;
    return inside ? [row, column] : null;
  }
}
