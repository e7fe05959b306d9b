// Curves over layers, as SVG.

const CHART_HEIGHT = 250, CHART_EDGES = { left: 52, right: 12, top: 12, bottom: 38 };
// A point is under the pointer within so many pixels.
const CHART_NEAR = 24;
// Values that differ by more have a logarithmic axis.
const CHART_LOG_RATIO = 30;

function svgPart(name, attributes, ...children) {
  const part = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) part.setAttribute(key, value);
  part.append(...children);
  return part;
}

/** What each colour stands for. */
function keyOf(entries) {
  const mark = (colour) => create("i", { style: `background: ${colour}` });
  return create("ul", { className: "vx-key" }, ...entries.map(({ name, colour }) => create("li", {}, mark(colour), name)));
}

/** Some round numbers from one value to another. */
function ticksOf(low, high, isLog) {
  if (isLog) {
    const powers = Array.from({ length: Math.ceil(Math.log10(high)) - Math.floor(Math.log10(low)) + 1 }, (_, index) => 10 ** (Math.floor(Math.log10(low)) + index));
    return powers.flatMap((power) => [power, 3 * power]).filter((value) => value >= low && value <= high);
  }
  const rough = (high - low) / 5 || 1, power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((each) => each * power >= rough), first = Math.ceil(low / step);
  return Array.from({ length: Math.floor(high / step + 1e-9) - first + 1 }, (_, index) => (first + index) * step);
}

class Chart {
  /**
   * @param options names of the places along the lower edge and what they are; the quantity; lines of colour, name and
   *   values (NaN where there is none); points of x, y, colour, what to say of them, and act() on a click; whether a wide
   *   range asks for a logarithmic axis
   */
  constructor({ places, axis, quantity, lines = [], points = [], mayBeLog = false }) {
    Object.assign(this, { places, axis, quantity, lines, points: points.filter(({ y }) => !Number.isNaN(y)) });
    const values = [...this.points.map(({ y }) => y), ...lines.flatMap((line) => line.values)].filter((value) => !Number.isNaN(value));
    const above = values.filter((value) => value > 0), least = Math.min(...above);
    this.high = Math.max(...values, 1e-9);
    this.isLog = mayBeLog && above.length === values.length && this.high > CHART_LOG_RATIO * least;
    this.low = this.isLog ? least / 1.2 : Math.min(0, ...values);
    this.svg = svgPart("svg", { role: "img" });
    this.key = keyOf(lines.filter(({ name }) => name));
    this.readout = create("output", { className: "vx-readout" });
    this.parts = [this.svg, this.readout, this.key];
    this.svg.onpointermove = (event) => {
      const near = this.near(event);
      this.readout.textContent = near ? near.said : "";
      this.svg.classList.toggle("vx-acts", Boolean(near?.act));
    };
    this.svg.onpointerleave = () => { this.readout.textContent = ""; };
    this.svg.onclick = (event) => this.near(event)?.act?.();
  }

  x(place) {
    const { left, right } = CHART_EDGES, wide = this.width - left - right - 16;
    return left + 8 + (this.places.length > 1 ? place / (this.places.length - 1) : 0.5) * wide;
  }

  y(value) {
    const { top, bottom } = CHART_EDGES, high = CHART_HEIGHT - top - bottom, { low, high: most } = this;
    const part = this.isLog ? Math.log(value / low) / Math.log(most / low) : (value - low) / (most - low);
    return top + (1 - part) * high;
  }

  near(event) {
    const edges = this.svg.getBoundingClientRect(), x = event.clientX - edges.left, y = event.clientY - edges.top;
    const distance = (point) => Math.hypot(this.x(point.x) - x, this.y(point.y) - y);
    const best = this.points.reduce((found, point) => (!found || distance(point) < distance(found) ? point : found), null);
    return best && distance(best) <= CHART_NEAR ? best : null;
  }

  draw(width) {
    this.width = width;
    const { left, right, bottom } = CHART_EDGES, floor = CHART_HEIGHT - bottom, ink = "currentColor";
    const text = (content, x, y, anchor, others = {}) => svgPart("text", { x, y, "text-anchor": anchor, fill: ink, ...others }, content);
    const parts = ticksOf(this.low, this.high, this.isLog).flatMap((tick) => [
      svgPart("line", { x1: left, x2: width - right, y1: this.y(tick), y2: this.y(tick), stroke: ink, "stroke-opacity": 0.15 }),
      text(formOf(this.quantity)(Number(tick.toPrecision(6))), left - 6, this.y(tick) + 4, "end"),
    ]);
    // Numbers that stand apart.
    const every = Math.ceil(this.places.length * 34 / (width - left - right));
    this.places.forEach((name, place) => { if (place % every === 0) parts.push(text(name, this.x(place), floor + 16, "middle")); });
    parts.push(text(this.axis, (left + width - right) / 2, CHART_HEIGHT - 4, "middle"));
    parts.push(text(`${this.quantity}${this.isLog ? " (log)" : ""}`, 13, (CHART_EDGES.top + floor) / 2, "middle", { transform: `rotate(-90 13 ${(CHART_EDGES.top + floor) / 2})` }));
    for (const { values, colour } of this.lines) {
      const known = values.map((value, place) => [place, value]).filter(([, value]) => !Number.isNaN(value));
      parts.push(svgPart("polyline", { points: known.map(([place, value]) => `${this.x(place)},${this.y(value)}`).join(" "), fill: "none", stroke: colour, "stroke-width": 2 }));
    }
    for (const { x, y, colour, said, act } of this.points) {
      parts.push(svgPart("circle", { cx: this.x(x), cy: this.y(y), r: 4, fill: colour, class: act ? "vx-point vx-acts" : "vx-point" }, svgPart("title", {}, said)));
    }
    for (const [name, value] of [["viewBox", `0 0 ${width} ${CHART_HEIGHT}`], ["font-family", "system-ui, sans-serif"], ["font-size", 12]]) this.svg.setAttribute(name, value);
    this.svg.replaceChildren(...parts);
  }

  /** As a file: black on white, with the names of its lines. */
  file() {
    const copy = this.svg.cloneNode(true), high = CHART_HEIGHT + 18 * this.key.children.length;
    for (const [name, value] of [["xmlns", "http://www.w3.org/2000/svg"], ["viewBox", `0 0 ${this.width} ${high}`], ["width", this.width], ["height", high], ["color", "black"]]) copy.setAttribute(name, value);
    copy.prepend(svgPart("rect", { width: this.width, height: high, fill: "white" }));
    this.lines.filter(({ name }) => name).forEach(({ name, colour }, place) => {
      const y = CHART_HEIGHT + 18 * place + 12;
      copy.append(svgPart("rect", { x: 52, y: y - 10, width: 12, height: 12, fill: colour }), svgPart("text", { x: 70, y }, name));
    });
    return copy.outerHTML;
  }
}
