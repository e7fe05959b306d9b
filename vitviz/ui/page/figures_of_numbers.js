// Figures of a probe that are tables of numbers: similar heads, filters, position embeddings.

import { showHeadOfLayer } from "./choices.js";
import { mosaicFigure, valuesAt } from "./figures.js";
import { lookOfPanels } from "./look.js";
import { drawRaster, rasterOf, rasterOfValues } from "./mosaic.js";
import { digits, percent, range, sum } from "./numbers.js";

/** @param {any} options */
export function matricesFigure({ values, quantity }) {
  const [layers, heads] = values.shape,
    all = range(layers).map((layer) => valuesAt(values, layer)),
    scale = lookOfPanels().fittedScale(all);
  const headsAt = (/** @type {number} */ across, /** @type {number} */ down) => [Math.floor(down * heads), Math.floor(across * heads)];
  /** @type {MosaicCell[]} */
  const cells = all.map((layerValues, layer) => ({
    title: `layer ${layer}`,
    paint: (context, ...box) =>
      drawRaster(context, rasterOfValues(layerValues, heads, heads, scale, lookOfPanels().table), ...box),
  }));
  return mosaicFigure(`${quantity} of the heads of a layer`, cells, {
    ratio: 1, maxWidth: 160,
    say: (layer, across, down) => {
      const [a, b] = headsAt(across, down);
      return `layer ${layer}, heads ${a} and ${b}: ${digits(valuesAt(values, layer, a)[b])}`;
    },
    act: (layer, across, down) => showHeadOfLayer({ layer, head: headsAt(across, down)[0] }),
  }, { wide: true, scale });
}

/**
 * The filters of the patch embedding; zero is the same grey in each.
 * @param {any} options
 * @param {any} options1
 */
export function filtersFigure({ values }, { measurements }) {
  const [count, channels, rows, columns] = values.shape,
    variance = measurements.find((/** @type {any} */ { axes }) => axes.join() === "component");
  /** @type {MosaicCell[]} */
  const cells = range(count).map((component) => {
    const filter = valuesAt(values, component),
      highest = Math.max(...filter.map(Math.abs)) || 1,
      level = (/** @type {number} */ channel, /** @type {number} */ pixel) =>
        127.5 * (filter[channel * rows * columns + pixel] / highest + 1);
    const grey = (/** @type {number} */ pixel) => sum(range(channels).map((channel) => level(channel, pixel))) / channels;
    const raster = rasterOf(rows, columns, (/** @type {number} */ pixel) =>
      channels === 3 ? range(3).map((channel) => level(channel, pixel)) : [grey(pixel), grey(pixel), grey(pixel)],
    );
    return {
      title: String(component),
      paint: (context, ...box) =>
        drawRaster(context, raster, ...box),
    };
  });
  const label = (/** @type {number} */ component) =>
    variance
      ? `component ${component}: ${percent(variance.values[component])} of the variance`
      : `component ${component}`;
  return mosaicFigure("filters", cells, { ratio: rows / columns, maxWidth: 110, say: label }, { wide: true });
}

/**
 * A map of the whole grid for each position, or for equally spaced positions of a large grid.
 * @param {any} options
 */
export function positionsFigure({ values, quantity }) {
  const [rows, columns] = values.shape,
    spaced = (/** @type {number} */ side) => [
      ...new Set(
        range(Math.min(side, MAX_POSITIONS)).map((index, _, { length }) =>
          Math.round(length > 1 ? (index * (side - 1)) / (length - 1) : 0),
        ),
      ),
    ];
  const across = spaced(columns), positions = spaced(rows).flatMap((row) => across.map((column) => [row, column]));
  const scale = lookOfPanels().fittedScale(positions.map((position) => valuesAt(values, ...position)));
  /** @type {MosaicCell[]} */
  const cells = positions.map((position) => ({
    title: "",
    paint: (context, ...box) =>
      drawRaster(
        context,
        rasterOfValues(valuesAt(values, ...position), rows, columns, scale, lookOfPanels().table),
        ...box,
      ),
  }));
  return mosaicFigure(`${quantity} of each position with all others`, cells, {
    ratio: rows / columns, columns: across.length, maxWidth: 90,
    say: (index, x, y) => {
      const otherPosition = [Math.floor(y * rows), Math.floor(x * columns)];
      const [value] = valuesAt(values, ...positions[index], ...otherPosition);
      return `positions (${positions[index].join(", ")}) and (${otherPosition.join(", ")}): ${digits(value)}`;
    },
  }, { wide: true, scale });
}

// In a sheet of one map for each position: the number of positions along each side.
const MAX_POSITIONS = 9;
