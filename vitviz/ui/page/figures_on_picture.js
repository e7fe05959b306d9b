// Figures of a probe on the picture: maps of tokens, classes and colours of patches.

import { OUTLIER_COLOUR } from "./canvas.js";
import { setProbeParameter } from "./choices.js";
import { contextOf, createCanvas } from "./dom.js";
import { highestOf, isKnown, MAX_LINES, mosaicFigure, valuesAt } from "./figures.js";
import { lookOfPanels } from "./look.js";
import { drawRaster, rasterOf } from "./mosaic.js";
import { digits, formOf, range } from "./numbers.js";
import { PIN_COLOURS } from "./pins.js";
import { isEqual } from "./store.js";
import { nameOf } from "./token_names.js";
import { probeParameter } from "./tokens.js";

/**
 * A paint function of a cell; painters fill a whole canvas, so that each cell has its own.
 * @param {Pane} pane
 * @param {(canvas: HTMLCanvasElement) => void} paintOn
 */
function onPicture(pane, paintOn) {
  return (
    /** @type {any} */ context,
    /** @type {number} */ left,
    /** @type {number} */ top,
    /** @type {number} */ width,
    /** @type {number} */ height,
  ) => {
    const times = context.getTransform().a,
      canvas = createCanvas(Math.max(1, Math.round(width * times)), Math.max(1, Math.round(height * times)));
    paintOn(canvas);
    context.drawImage(canvas, left, top, width, height);
  };
}

/**
 * A function of a patch in a cell, as one of a point of the cell.
 * @param {ProbeContext} context
 * @param {((index: number, cell: Cell) => any) | null} run
 * @returns {any}
 */
const atPatch = (context, run) => run && ((/** @type {number} */ index, /** @type {number} */ across, /** @type {number} */ down) => {
  const cell = context.pane.painter.cellAt(across, down);
  return cell ? run(index, cell) : "";
});

/**
 * Maps of tokens on one scale: `tokens` has the values of each, `marked` the outlined tokens.
 * @param {string} title
 * @param {string[]} titles
 * @param {Float32Array[]} tokens
 * @param {ProbeContext} context
 * @param {MapsOptions} options
 */
export function mapsFigure(title, titles, tokens, context, options) {
  const { say, act = null, wide = true, maxWidth = 200, marked: outlined = [], quantity } = options;
  const { pane } = context, patchMaps = tokens.map((/** @type {any} */ values) => patchesOf(context, values));
  const fit = () => lookOfPanels().fittedScale(patchMaps.map((/** @type {any} */ values) => values.filter(isKnown)));
  const scale = fit();
  const cells = titles.map((/** @type {string} */ name, /** @type {number} */ index) => ({
    title: name,
    paint: onPicture(pane, (canvas) => {
      const { table, look } = lookOfPanels();
      pane.painter.paint(canvas, patchMaps[index], scale, table, look);
      for (const token of outlined)
        pane.painter.mark(canvas, pane.attention.cell(token), OUTLIER_COLOUR, Math.max(1, canvas.width / 300), true);
    }),
  }));
  const shape = { ratio: pane.painter.ratio, maxWidth };
  const withValue = (/** @type {any} */ run) => atPatch(context, run && ((index, cell) =>
    run(index, cell, tokens[index][pane.attention.token(...cell)])));
  return mosaicFigure(title, cells, { ...shape, say: withValue(say), act: withValue(act) }, { wide, scale, quantity });
}

/**
 * @param {Measurement} measurement
 * @param {ProbeContext} context
 */
export function tokenFigure(measurement, context) {
  const { measurements } = context, tokenMeasurements = measurements.filter(({ axes }) => axes.join() === "token");
  const flag = tokenMeasurements.find(({ is_flag }) => is_flag);
  // Flags are outlined on the map beside them.
  if (measurement.is_flag && tokenMeasurements.length > 1) return [];
  const outlined = flag ? range(flag.values.length).filter((token) => flag.values[token] && token >= context.pane.attention.prefix) : [];
  return mapsFigure(measurement.quantity, [""], [measurement.values], context, {
    wide: false,
    maxWidth: 460,
    marked: outlined,
    say: (index, cell, value) =>
      `${nameOf(cell)}: ${digits(value)}`,
    // Where one token is compared with all, a click compares another one.
    act: probeParameter(context.probe, ({ name }) => name === "query") ? (_, cell) => setProbeParameter("query", cell) : null,
  });
}

/**
 * @param {Measurement} measurement
 * @param {ProbeContext} context
 */
export function stepsFigure(measurement, context) {
  const { values, quantity, indexes } = measurement, prefix = context.pane.attention.prefix;
  // A model that classifies its CLS token has no patches after the last layer.
  const steps = range(values.shape[0]).filter((step) => valuesAt(values, step).subarray(prefix).some(isKnown));
  if (indexes) return classesFigure(measurement, steps, context);
  // Beside the classes of the tokens, the other measurement is about these.
  const named = context.measurements.find((other) => other.indexes && isEqual(other.axes, measurement.axes));
  return mapsFigure(
    `${quantity}${named ? ` of each patch’s ${named.indexes}` : ""}, after every layer`,
    steps.map(stepName),
    steps.map((step) => valuesAt(values, step)),
    context,
    {
      quantity,
      say: (index, cell, value) =>
        `${nameOf(cell)} ${afterStep(steps[index])}: ${formOf(quantity)(value)}`,
    },
  );
}

/**
 * The class of each patch after every layer; the most common ones have colours of their own.
 * @param {any} options
 * @param {any} steps
 * @param {ProbeContext} context
 */
function classesFigure({ values, names, indexes }, steps, context) {
  const { pane } = context, { prefix } = pane.attention, { rows, columns } = pane.facts;
  const labels = names[indexes] ?? context.measurements.map((entry) => entry.names[indexes]).find(Boolean) ?? [];
  const nameOfClass = (/** @type {number} */ index) => (labels[index] ?? `${indexes} ${index}`).split(",")[0], counts = new Map();
  for (const step of steps) for (const index of valuesAt(values, step).subarray(prefix)) counts.set(index, (counts.get(index) ?? 0) + 1);
  const commonest = [...counts].sort(([, a], [, b]) => b - a).slice(0, MAX_LINES).map(([index]) => index);
  // A class has the colour of its line, if there is one.
  const lineMeasurement = context.measurements.find(({ axes }) => axes.join() === `step,${indexes}`),
    lineClasses = lineMeasurement ? highestOf(lineMeasurement.values) : [];
  const moreColours = [...MORE_COLOURS];
  const colours = new Map(commonest.map((index) => [index, PIN_COLOURS[lineClasses.indexOf(index)] ?? moreColours.shift()]));
  const colourOf = (/** @type {number} */ index) => colours.get(index) ?? OTHER_CLASS;
  const cells = steps.map((/** @type {number} */ step) => {
    const patches = valuesAt(values, step).subarray(prefix),
      raster = rasterOf(rows, columns, (/** @type {number} */ patch) => bytesOf(colourOf(patches[patch])));
    return {
      title: stepName(step),
      paint: onPicture(pane, (canvas) =>
        overPicture(pane, canvas, raster, lookOfPanels().look.opacity),
      ),
    };
  });
  const others = counts.size > commonest.length ? [{ name: `${counts.size - commonest.length} others`, colour: OTHER_CLASS }] : [];
  return mosaicFigure(`The ${indexes} that each patch speaks for`, cells, {
    ratio: pane.painter.ratio,
    say: atPatch(context, (index, cell) =>
      `${nameOf(cell)} ${afterStep(steps[index])}: ${nameOfClass(valuesAt(values, steps[index])[pane.attention.token(...cell)])}`),
  }, { wide: true, key: [...commonest.map((index) => ({ name: nameOfClass(index), colour: colourOf(index) })), ...others] });
}

/**
 * Colours of patches over the picture.
 * @param {Pane} pane
 * @param {HTMLCanvasElement} canvas
 * @param {any} raster
 * @param {any} opacity
 */
function overPicture(pane, canvas, raster, opacity) {
  pane.painter.paint(canvas, null, null, null, { grid: false });
  const context = contextOf(canvas), [left, top, right, bottom] = pane.painter.box(canvas.width, canvas.height);
  context.globalAlpha = opacity;
  drawRaster(context, raster, left, top, right - left, bottom - top);
  context.globalAlpha = 1;
}

/**
 * Three principal components of the patches as colours, in the picture's shape.
 * @param {any} options
 * @param {ProbeContext} context
 */
export function coloursFigure({ values }, context) {
  const [rows, columns, channels] = values.shape, { pane } = context;
  const raster = rasterOf(rows, columns, (/** @type {number} */ patch) =>
    range(3).map((channel) => 255 * values[patch * channels + channel]),
  );
  const cells = [{ title: "", paint: onPicture(pane, (canvas) => overPicture(pane, canvas, raster, 1)) }];
  return mosaicFigure("three principal components as colours", cells, {
    ratio: pane.painter.ratio,
    maxWidth: 460,
    say: atPatch(context, (_, cell) =>
      `${nameOf(cell)}: ${range(3).map((channel) => digits(valuesAt(values, ...cell)[channel])).join(", ")}`),
  });
}

const OTHER_CLASS = "#8a8f98";

// For classes without a line of their own: no colour of the lines, which are those of the pins.
const MORE_COLOURS = ["#332288", "#44aa99", "#882255", "#999933", "#aa4499", "#661100"];

/** @param {number} step */
export const afterStep = (step) => (step === 0 ? "before the first layer" : `after layer ${step - 1}`);

/** @param {number} step */
const stepName = (step) => (step === 0 ? "input" : `layer ${step - 1}`);

/** @param {any} colour */
const bytesOf = (colour) => [1, 3, 5].map((start) => parseInt(colour.slice(start, start + 2), 16));

/**
 * The values of the patches.
 * @param {any} options
 * @param {Float32Array} values
 */
export const patchesOf = ({ pane }, values) => values.subarray(pane.attention.prefix);
