// Curves over layers, as SVG.

import { create, setAttributes, svgPart } from "./dom.js";
import { formOf, range } from "./numbers.js";

const CHART_HEIGHT = 250, CHART_EDGES = { left: 72, right: 12, top: 12, bottom: 38 };
// The largest distance of the pointer from a point.
const CHART_NEAR_PIXELS = 24;
// A larger ratio of values leads to a logarithmic axis.
const CHART_LOG_RATIO = 30;

/**
 * A list of names and colours.
 * @param {any} entries
 */
export function keyOf(entries) {
  const mark = (/** @type {any} */ colour) => create("i", { style: `background: ${colour}` });
  return create(
    "ul",
    { className: "vx-key" },
    ...entries.map((/** @type {any} */ { name, colour }) => create("li", {}, mark(colour), name)),
  );
}

/**
 * Round numbers between two values.
 * @param {number} low
 * @param {number} high
 * @param {any} isLog
 */
function ticksOf(low, high, isLog) {
  if (isLog) {
    const first = Math.floor(Math.log10(low)),
      powers = range(Math.ceil(Math.log10(high)) - first + 1).map((index) => 10 ** (first + index));
    return powers.flatMap((power) => [power, 3 * power]).filter((value) => value >= low && value <= high);
  }
  const rough = (high - low) / 5 || 1, power = 10 ** Math.floor(Math.log10(rough));
  const step = power * (/** @type {number} */ ([1, 2, 5, 10].find((each) => each * power >= rough))), first = Math.ceil(low / step);
  return range(Math.floor(high / step + 1e-9) - first + 1).map((index) => (first + index) * step);
}

export class Chart {
  /**
   * @param {ChartOptions} options places (names along the lower edge), axis (their name), quantity, lines with colour, name and values
   *   (NaN for a missing one), points with x, y, colour, text (a description) and act() on a click, mayBeLog (whether a
   *   wide range leads to a logarithmic axis)
   */
  constructor({ places, axis, quantity, lines = [], points = [], mayBeLog = false }) {
    this.width = 0;
    this.about = { places, axis, quantity, lines };
    this.points = points.filter((/** @type {any} */ { y }) => !Number.isNaN(y));
    const values = [
      ...this.points.map((/** @type {any} */ { y }) => y),
      ...lines.flatMap((/** @type {any} */ line) => line.values),
    ].filter((value) => !Number.isNaN(value));
    const positive = values.filter((value) => value > 0), smallest = Math.min(...positive);
    this.high = Math.max(...values, 1e-9);
    this.isLog = mayBeLog && positive.length === values.length && this.high > CHART_LOG_RATIO * smallest;
    this.low = this.isLog ? smallest / 1.2 : Math.min(0, ...values);
    this.svg = svgPart("svg", { role: "img" });
    this.key = keyOf(lines.filter((/** @type {any} */ { name }) => name));
    const readout = create("output", { className: "vx-readout" });
    this.parts = [this.svg, readout, this.key];
    this.svg.onpointermove = (event) => {
      const point = this.nearest(event);
      readout.textContent = point?.text ?? "";
      this.svg.classList.toggle("vx-acts", Boolean(point?.act));
    };
    this.svg.onpointerleave = () => { readout.textContent = ""; };
    this.svg.onclick = (event) => this.nearest(event)?.act?.();
  }

  /** @param {number} index */
  x(index) {
    const { left, right } = CHART_EDGES, plotWidth = this.width - left - right - 16;
    return left + 8 + (this.about.places.length > 1 ? index / (this.about.places.length - 1) : 0.5) * plotWidth;
  }

  /** @param {number} value */
  y(value) {
    const { top, bottom } = CHART_EDGES, plotHeight = CHART_HEIGHT - top - bottom, { low, high: maximum } = this;
    const share = this.isLog ? Math.log(value / low) / Math.log(maximum / low) : (value - low) / (maximum - low);
    return top + (1 - share) * plotHeight;
  }

  /** @param {any} event */
  nearest(event) {
    const edges = this.svg.getBoundingClientRect(), x = event.clientX - edges.left, y = event.clientY - edges.top;
    const distance = (/** @type {any} */ point) => Math.hypot(this.x(point.x) - x, this.y(point.y) - y);
    const best = this.points.reduce(
      (/** @type {any} */ best, /** @type {any} */ point) => (!best || distance(point) < distance(best) ? point : best),
      null,
    );
    return best && distance(best) <= CHART_NEAR_PIXELS ? best : null;
  }

  /** @param {number} width */
  draw(width) {
    this.width = width;
    const { places, axis, quantity, lines } = this.about;
    const { left, right, bottom } = CHART_EDGES, floor = CHART_HEIGHT - bottom, ink = "currentColor";
    const text = (/** @type {any} */ content, /** @type {any} */ x, /** @type {any} */ y, /** @type {any} */ anchor, attributes = {}) =>
      svgPart("text", { x, y, "text-anchor": anchor, fill: ink, ...attributes }, content);
    const parts = ticksOf(this.low, this.high, this.isLog).flatMap((tick) => [
      svgPart("line", { x1: left, x2: width - right, y1: this.y(tick), y2: this.y(tick), stroke: ink, "stroke-opacity": 0.15 }),
      text(formOf(quantity)(Number(tick.toPrecision(6))), left - 6, this.y(tick) + 4, "end"),
    ]);
    // Labels that do not overlap.
    const step = Math.ceil(places.length * 34 / (width - left - right));
    places.forEach((/** @type {string} */ name, /** @type {number} */ index) => {
      if (index % step === 0) parts.push(text(name, this.x(index), floor + 16, "middle"));
    });
    parts.push(text(axis, (left + width - right) / 2, CHART_HEIGHT - 4, "middle"));
    parts.push(
      text(`${quantity}${this.isLog ? " (log)" : ""}`, 13, (CHART_EDGES.top + floor) / 2, "middle", {
        transform: `rotate(-90 13 ${(CHART_EDGES.top + floor) / 2})`,
      }),
    );
    for (const { values, colour } of lines) {
      const points = values
        .map((/** @type {any} */ value, /** @type {number} */ index) => [index, value])
        .filter((/** @type {any} */ [, value]) => !Number.isNaN(value));
      parts.push(
        svgPart("polyline", {
          points: points.map((/** @type {any} */ [index, value]) => `${this.x(index)},${this.y(value)}`).join(" "),
          fill: "none",
          stroke: colour,
          "stroke-width": 2,
        }),
      );
    }
    for (const { x, y, colour, text: label, act } of this.points) {
      parts.push(
        svgPart(
          "circle",
          { cx: this.x(x), cy: this.y(y), r: 4, fill: colour, class: act ? "vx-point vx-acts" : "vx-point" },
          svgPart("title", {}, label),
        ),
      );
    }
    setAttributes(this.svg, { viewBox: `0 0 ${width} ${CHART_HEIGHT}`, "font-family": "system-ui, sans-serif", "font-size": 12 });
    this.svg.replaceChildren(...parts);
  }

  /** The chart as a file: black on white, with the names of its lines. */
  file() {
    const file = /** @type {Element} */ (this.svg.cloneNode(true)), height = CHART_HEIGHT + 18 * this.key.children.length;
    const { width } = this;
    setAttributes(file, { xmlns: "http://www.w3.org/2000/svg", viewBox: `0 0 ${width} ${height}`, width, height, color: "black" });
    file.prepend(svgPart("rect", { width, height, fill: "white" }));
    this.about.lines.filter(({ name }) => name).forEach(({ name, colour }, index) => {
      const y = CHART_HEIGHT + 18 * index + 12;
      file.append(
        svgPart("rect", { x: CHART_EDGES.left, y: y - 10, width: 12, height: 12, fill: colour }),
        svgPart("text", { x: CHART_EDGES.left + 18, y }, name),
      );
    });
    return file.outerHTML;
  }
}
