// Figures of a probe over the layers: curves, and maps of every layer.

import { showHeadOfLayer } from "./choices.js";
import { chartFigure, highestOf, isKnown, valuesAt } from "./figures.js";
import { afterStep, mapsFigure, patchesOf } from "./figures_on_picture.js";
import { digits, formOf, range, sum } from "./numbers.js";
import { PIN_COLOURS } from "./pins.js";
import { PROBES } from "./settings.js";
import { nameOf, queryOf } from "./token_names.js";

/**
 * @param {Measurement} measurement
 * @param {ProbeContext} context
 */
export function layersFigures(measurement, context) {
  const { values, quantity } = measurement, [layers, heads, tokens] = values.shape;
  const means = range(layers).map((layer) =>
    Float32Array.from(
      { length: tokens },
      (_, token) => sum(range(heads).map((head) => valuesAt(values, layer, head)[token])) / heads,
    ),
  );
  const strongest = range(layers).map((layer) => range(heads).map((head) => {
    const patches = patchesOf(context, valuesAt(values, layer, head)), patch = patches.indexOf(Math.max(...patches));
    return { value: patches[patch], text: ` at ${nameOf(queryOf(patch + context.pane.attention.prefix, context.pane.facts))}` };
  }));
  return [
    curves(`${quantity}: the patch with most`, quantity, strongest, context, true),
    mapsFigure(
      `${quantity}, mean of heads`,
      range(layers).map((layer) => `layer ${layer}`),
      means,
      context,
      {
        say: (layer, cell, value) =>
          `${nameOf(cell)}, layer ${layer}: ${digits(value)}`,
        act: (layer) => showHeadOfLayer({ layer, head: "mean" }),
      },
    ),
  ];
}

/**
 * A point for each head, and the mean of each layer; `heads` has value and description of each layer and head.
 * @param {string} title
 * @param {string} quantity
 * @param {any} heads
 * @param {ProbeContext} context
 * @param {any=} mayBeLog
 */
function curves(title, quantity, heads, context, mayBeLog = false) {
  const points = heads.flatMap((/** @type {any} */ heads, /** @type {number} */ layer) =>
    heads.map((/** @type {any} */ { value, text: label }, /** @type {number} */ head) => ({
      x: layer,
      y: value,
      colour: HEAD_COLOUR,
      text: `layer ${layer}, head ${head}: ${digits(value)}${label}`,
      act: () => showHeadOfLayer({ layer, head }),
    })),
  );
  const means = heads
    .map((/** @type {any} */ heads) => heads.map((/** @type {any} */ { value }) => value).filter(isKnown))
    .map((/** @type {any} */ values) => (values.length ? sum(values) / values.length : NaN));
  const lines = [{ values: means, colour: MEAN_COLOUR, name: "mean of heads" }];
  const figure = chartFigure(title, {
    places: heads.map((/** @type {any} */ _, /** @type {number} */ layer) => String(layer)),
    axis: "layer",
    quantity,
    points,
    lines,
    mayBeLog,
  });
  return { ...figure, note: "Every point is a head. A click on one shows it on the picture." };
}

/**
 * @param {any} options
 * @param {ProbeContext} context
 */
export function headsFigure({ values, quantity, names }, context) {
  const heads = range(values.shape[0]).map((layer) => range(values.shape[1]).map((head) => {
    const tokenValues = Array.from(valuesAt(values, layer, head));
    // The sum of several prefix tokens.
    const prefixText =
      tokenValues.length > 1
        ? tokenValues
            .map((value, index) => `${nameOf(names.prefix?.[index] ?? String(index))} ${digits(value)}`)
            .join(", ")
        : "";
    return { value: sum(tokenValues), text: prefixText && ` (${prefixText})` };
  }));
  return curves(PROBES[context.probe].title, quantity, heads, context);
}

/**
 * Lines over the steps, for the places of the other axis with the highest values in any step.
 * @param {any} options
 */
export function linesFigure({ values, axes: [, axis], quantity, names, indexes }) {
  // Class indexes are no quantity.
  if (indexes) return [];
  const [steps, count] = values.shape, highest = highestOf(values);
  const nameOfPlace = (/** @type {number} */ index) => names[axis]?.[index].split(",")[0] ?? `${axis} ${index}`;
  const lines = highest.map((index, rank) => ({
    name: nameOfPlace(index),
    colour: PIN_COLOURS[rank],
    values: range(steps).map((step) => values[step * count + index]),
  }));
  const points = lines.flatMap(({ name, colour, values: lineValues }) =>
    lineValues.map((value, step) => ({
      x: step,
      y: value,
      colour,
      text: `${name} ${afterStep(step)}: ${formOf(quantity)(value)}`,
    })),
  );
  return chartFigure(`${quantity} of each ${axis}, after every layer`, {
    places: range(steps).map((step) => (step ? String(step - 1) : "input")),
    axis: "after layer",
    quantity,
    lines,
    points,
  });
}

const MEAN_COLOUR = "#56b4e9", HEAD_COLOUR = "#d55e00";
