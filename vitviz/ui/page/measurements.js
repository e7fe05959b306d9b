// The measurements of a probe as figures, whose kind follows from the axes.

import { headsFigure, layersFigures, linesFigure } from "./figures_of_layers.js";
import { filtersFigure, matricesFigure, positionsFigure } from "./figures_of_numbers.js";
import { coloursFigure, stepsFigure, tokenFigure } from "./figures_on_picture.js";

/**
 * The figures of a measurement, each with a title, parts (its elements) and draw(width, ink), and optionally scale, and wide
 * (the whole width).
 * @param {Measurement} measurement name, values with their shape, axes, quantity, names, indexes, is_flag
 * @param {ProbeContext} context of the probe: pane, all measurements, parameters
 */
export function figuresOf(measurement, context) {
  const make = FIGURES[measurement.axes.join(" ")];
  return make ? [make(measurement, context)].flat().filter(Boolean) : [];
}

// By the axes of a measurement, as in DRAWINGS of vitviz/evaluation/probes/probe_figures.py.
/** @type {Record<string, (measurement: Measurement, context: ProbeContext) => any>} */
const FIGURES = {
  token: tokenFigure,
  "step token": stepsFigure,
  "layer head token": layersFigures,
  "layer head": headsFigure,
  "layer head prefix": headsFigure,
  "layer head other head": matricesFigure,
  "step class": linesFigure,
  "step feature": linesFigure,
  "row column channel": coloursFigure,
  "component channel row column": filtersFigure,
  "row column other row other column": positionsFigure,
};
