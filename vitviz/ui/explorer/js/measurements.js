// The measurements of a probe as figures, whose kind follows from the axes.

// The number of lines or classes with colours of their own.
const MAX_LINES = 6;
// In a sheet of one map for each position: the number of positions along each side.
const MAX_POSITIONS = 9;
const OTHER_CLASS = "#8a8f98";
// For classes without a line of their own: no colour of the lines, which are those of the pins.
const MORE_COLOURS = ["#332288", "#44aa99", "#882255", "#999933", "#aa4499", "#661100"];
const MEAN_COLOUR = "#56b4e9", HEAD_COLOUR = "#d55e00";

const stepName = (step) => (step === 0 ? "input" : `layer ${step - 1}`);
const afterStep = (step) => (step === 0 ? "before the first layer" : `after layer ${step - 1}`);
const isKnown = (value) => !Number.isNaN(value);
const sentenceCase = (text) => text[0].toUpperCase() + text.slice(1);
const bytesOf = (colour) => [1, 3, 5].map((start) => parseInt(colour.slice(start, start + 2), 16));

/** The values at one place along the first axis or axes. */
function slice(values, ...places) {
  const size = values.shape.slice(places.length).reduce((product, side) => product * side, 1);
  const start = places.reduce((sum, place, axis) => sum * values.shape[axis] + place, 0) * size;
  const subvalues = values.subarray(start, start + size);
  subvalues.shape = values.shape.slice(places.length);
  return subvalues;
}

/**
 * The figures of a measurement, each with a title, parts (its elements) and draw(width, ink), and optionally scale, wide
 * (the whole width), and follow(token), which shows another token at once.
 * @param measurement name, values with their shape, axes, quantity, names, indexes, is_flag
 * @param context of the probe: pane, all measurements, parameters
 */
function figuresOf(measurement, context) {
  const make = FIGURES[measurement.axes.join(" ")];
  return make ? [make(measurement, context)].flat().filter(Boolean) : [];
}

/** A mosaic as a figure. */
function mosaicFigure(title, cells, options, others = {}) {
  const mosaic = new Mosaic(cells, options);
  return { title: sentenceCase(title), parts: mosaic.parts, draw: (width, ink) => mosaic.draw(width, ink), mosaic, ...others };
}

function chartFigure(title, options) {
  const chart = new Chart(options);
  return { title: sentenceCase(title), parts: chart.parts, draw: (width) => chart.draw(width), chart };
}

// ---- maps on the picture ----

/** A paint function of a cell; painters fill a whole canvas, so that each cell has its own. */
function onPicture(pane, paintOn) {
  return (context, left, top, width, height) => {
    const times = context.getTransform().a, canvas = createCanvas(...[width, height].map((side) => Math.max(1, Math.round(side * times))));
    paintOn(canvas);
    context.drawImage(canvas, left, top, width, height);
  };
}

const cellOf = ({ pane }, across, down) => pane.painter.cellAt(across, down);
const patchesOf = ({ pane }, values) => values.subarray(pane.attention.prefix);

/** Maps of tokens on one scale: `tokens` has the values of each, `marked` the outlined tokens. */
function mapsFigure(title, titles, tokens, context, { say, act = null, wide = true, maxWidth = 200, marked: outlined = [], quantity }) {
  const { pane } = context, patchMaps = tokens.map((values) => patchesOf(context, values));
  const fit = () => lookOfPanels().fittedScale(patchMaps.map((values) => values.filter(isKnown)));
  const scale = fit();
  const cells = titles.map((name, index) => ({
    title: name,
    paint: onPicture(pane, (canvas) => {
      const { table, look } = lookOfPanels();
      pane.painter.paint(canvas, patchMaps[index], scale, table, look);
      for (const token of outlined) pane.painter.mark(canvas, pane.attention.cell(token), OUTLIER_COLOUR, Math.max(1, canvas.width / 300), true);
    }),
  }));
  const options = { ratio: pane.painter.ratio, maxWidth };
  const atPatch = (run) => run && ((index, across, down) => {
    const cell = cellOf(context, across, down);
    return cell ? run(index, cell, tokens[index][pane.attention.token(...cell)]) : "";
  });
  return mosaicFigure(title, cells, { ...options, say: atPatch(say), act: atPatch(act) }, { wide, scale, quantity });
}

function tokenFigure(measurement, context) {
  const { measurements } = context, tokenMeasurements = measurements.filter(({ axes }) => axes.join() === "token");
  const vectors = measurements.find(({ axes }) => axes.join() === "token,feature"), flag = tokenMeasurements.find(({ is_flag }) => is_flag);
  if (vectors) return comparedFigure(measurement, vectors, context);
  // Flags are outlined on the map beside them.
  if (measurement.is_flag && tokenMeasurements.length > 1) return [];
  const outlined = flag ? range(flag.values.length).filter((token) => flag.values[token] && token >= context.pane.attention.prefix) : [];
  return mapsFigure(measurement.quantity, [""], [measurement.values], context, {
    wide: false, maxWidth: 460, marked: outlined, say: (index, cell, value) => `${nameOf(cell)}: ${digits(value)}`,
  });
}

/** A token compared with all others; the one under the pointer at once, since the page has all vectors. */
function comparedFigure(measurement, vectors, context) {
  const { pane, parameters } = context, [tokens, features] = vectors.values.shape, { prefix } = pane.attention;
  const query = parameters.query ?? probeDefaultOf(PROBES[context.probe].parameters.find(({ kind }) => kind === "token"), pane.facts);
  const queryToken = tokenOf(query, pane.facts, null);
  let token = queryToken, values = measurement.values, scale = null;
  const figure = { wide: false };
  const compare = (next) => {
    token = next ?? queryToken;
    if (next === null || next === queryToken) values = measurement.values;
    else {
      values = new Float32Array(tokens);
      products(vectors.values, next, vectors.values, 0, features, values);
    }
    // A token's likeness to itself says nothing.
    scale = lookOfPanels().fittedScale([patchesOf(context, values).filter((_, patch) => patch + prefix !== token)]);
    figure.scale = scale;
    const name = token === null ? nameOf(query) : nameOf(queryOf(token, pane.facts));
    figure.title = sentenceCase(`${measurement.quantity} of ${name} with every token`);
    figure.note = pane.facts.prefix.map((name, index) => `${nameOf(name)} ${digits(values[index])}`).join(" · ");
  };
  compare(null);
  const cell = { title: "", paint: onPicture(pane, (canvas) => {
    const { table, look } = lookOfPanels();
    pane.painter.paint(canvas, patchesOf(context, values), scale, table, look);
    if (token !== null && token >= prefix) pane.painter.mark(canvas, pane.attention.cell(token), "white", Math.max(1, canvas.width / 300));
  }) };
  const under = (across, down) => {
    const cell = cellOf(context, across, down);
    return cell && pane.attention.token(...cell);
  };
  const mosaic = new Mosaic([cell], {
    ratio: pane.painter.ratio, maxWidth: 460,
    say: (_, across, down) => {
      const next = under(across, down);
      if (next !== null && next !== token) figure.changed(next);
      return next === null ? "" : `${nameOf(queryOf(next, pane.facts))}: ${digits(measurement.values[next])} with ${nameOf(query)}`;
    },
    act: (_, across, down) => cellOf(context, across, down) && setProbeParameter("query", cellOf(context, across, down)),
    onLeave: () => figure.changed(null),
  });
  // The panel replaces `changed`: with another token, the title changes.
  return Object.assign(figure, {
    parts: mosaic.parts, mosaic, follow: compare, changed: () => {}, draw: (width, ink) => mosaic.draw(width, ink), values: () => Array.from(values),
  });
}

function stepsFigure(measurement, context) {
  const { values, quantity, indexes } = measurement, prefix = context.pane.attention.prefix;
  // A model that classifies its CLS token has no patches after the last layer.
  const steps = range(values.shape[0]).filter((step) => slice(values, step).subarray(prefix).some(isKnown));
  if (indexes) return classesFigure(measurement, steps, context);
  // Beside the classes of the tokens, the other measurement is about these.
  const named = context.measurements.find((other) => other.indexes && isEqual(other.axes, measurement.axes));
  return mapsFigure(`${quantity}${named ? ` of each patch’s ${named.indexes}` : ""}, after every layer`, steps.map(stepName), steps.map((step) => slice(values, step)), context, {
    quantity, say: (index, cell, value) => `${nameOf(cell)} ${afterStep(steps[index])}: ${formOf(quantity)(value)}`,
  });
}

/** The class of each patch after every layer; the most common ones have colours of their own. */
function classesFigure({ values, names, indexes }, steps, context) {
  const { pane } = context, { prefix } = pane.attention, { rows, columns } = pane.facts;
  const labels = names[indexes] ?? context.measurements.map((entry) => entry.names[indexes]).find(Boolean) ?? [];
  const nameOfClass = (index) => (labels[index] ?? `${indexes} ${index}`).split(",")[0], counts = new Map();
  for (const step of steps) for (const index of slice(values, step).subarray(prefix)) counts.set(index, (counts.get(index) ?? 0) + 1);
  const commonest = [...counts].sort(([, a], [, b]) => b - a).slice(0, MAX_LINES).map(([index]) => index);
  // A class has the colour of its line, if there is one.
  const lineMeasurement = context.measurements.find(({ axes }) => axes.join() === `step,${indexes}`), lineClasses = lineMeasurement ? highestOf(lineMeasurement.values) : [];
  const moreColours = [...MORE_COLOURS];
  const colours = new Map(commonest.map((index) => [index, PIN_COLOURS[lineClasses.indexOf(index)] ?? moreColours.shift()]));
  const colourOf = (index) => colours.get(index) ?? OTHER_CLASS;
  const cells = steps.map((step) => {
    const patches = slice(values, step).subarray(prefix), raster = rasterOf(rows, columns, (patch) => bytesOf(colourOf(patches[patch])));
    return { title: stepName(step), paint: onPicture(pane, (canvas) => overPicture(pane, canvas, raster, lookOfPanels().look.opacity)) };
  });
  const others = counts.size > commonest.length ? [{ name: `${counts.size - commonest.length} others`, colour: OTHER_CLASS }] : [];
  return mosaicFigure(`The ${indexes} that each patch speaks for`, cells, {
    ratio: pane.painter.ratio,
    say: (index, across, down) => {
      const cell = cellOf(context, across, down);
      return cell && `${nameOf(cell)} ${afterStep(steps[index])}: ${nameOfClass(slice(values, steps[index])[pane.attention.token(...cell)])}`;
    },
  }, { wide: true, key: [...commonest.map((index) => ({ name: nameOfClass(index), colour: colourOf(index) })), ...others] });
}

/** Colours of patches over the picture. */
function overPicture(pane, canvas, raster, opacity) {
  pane.painter.paint(canvas, null, null, null, { grid: false });
  const context = canvas.getContext("2d"), [left, top, right, bottom] = pane.painter.box(canvas.width, canvas.height);
  context.globalAlpha = opacity;
  drawRaster(context, raster, left, top, right - left, bottom - top);
  context.globalAlpha = 1;
}

function layersFigures(measurement, context) {
  const { values, quantity } = measurement, [layers, heads, tokens] = values.shape;
  const means = range(layers).map((layer) => Float32Array.from({ length: tokens }, (_, token) => sum(range(heads).map((head) => slice(values, layer, head)[token])) / heads));
  const strongest = range(layers).map((layer) => range(heads).map((head) => {
    const patches = patchesOf(context, slice(values, layer, head)), patch = patches.indexOf(Math.max(...patches));
    return { value: patches[patch], text: ` at ${nameOf(queryOf(patch + context.pane.attention.prefix, context.pane.facts))}` };
  }));
  return [
    curves(`${quantity}: the patch with most`, quantity, strongest, context, true),
    mapsFigure(`${quantity}, mean of heads`, range(layers).map((layer) => `layer ${layer}`), means, context, {
      say: (layer, cell, value) => `${nameOf(cell)}, layer ${layer}: ${digits(value)}`, act: (layer) => showHeadOfLayer(layer, "mean"),
    }),
  ];
}

/** Three principal components of the patches as colours, in the picture's shape. */
function coloursFigure({ values }, context) {
  const [rows, columns, channels] = values.shape, { pane } = context;
  const raster = rasterOf(rows, columns, (patch) => range(3).map((channel) => 255 * values[patch * channels + channel]));
  const cells = [{ title: "", paint: onPicture(pane, (canvas) => overPicture(pane, canvas, raster, 1)) }];
  return mosaicFigure("three principal components as red, green and blue", cells, { ratio: pane.painter.ratio, maxWidth: 460, say: (_, across, down) => {
    const cell = cellOf(context, across, down);
    return cell && `${nameOf(cell)}: ${range(3).map((channel) => digits(slice(values, ...cell)[channel])).join(", ")}`;
  } });
}

// ---- curves ----

/** A point for each head, and the mean of each layer; `heads` has value and description of each layer and head. */
function curves(title, quantity, heads, context, mayBeLog = false) {
  const points = heads.flatMap((heads, layer) => heads.map(({ value, text: label }, head) => ({
    x: layer, y: value, colour: HEAD_COLOUR, text: `layer ${layer}, head ${head}: ${digits(value)}${label}`, act: () => showHeadOfLayer(layer, head),
  })));
  const means = heads.map((heads) => heads.map(({ value }) => value).filter(isKnown)).map((values) => (values.length ? sum(values) / values.length : NaN));
  const lines = [{ values: means, colour: MEAN_COLOUR, name: "mean of heads" }];
  const figure = chartFigure(title, { places: heads.map((_, layer) => String(layer)), axis: "layer", quantity, points, lines, mayBeLog });
  return { ...figure, note: "Every point is a head. A click on one shows it on the picture." };
}

function headsFigure({ values, quantity, names }, context) {
  const heads = range(values.shape[0]).map((layer) => range(values.shape[1]).map((head) => {
    const tokenValues = Array.from(slice(values, layer, head));
    // The sum of several prefix tokens.
    const prefixText = tokenValues.length > 1 ? tokenValues.map((value, index) => `${nameOf(names.prefix?.[index] ?? String(index))} ${digits(value)}`).join(", ") : "";
    return { value: sum(tokenValues), text: prefixText && ` (${prefixText})` };
  }));
  return curves(PROBES[context.probe].title, quantity, heads, context);
}

/** The places of the second axis with the highest values in any step, the highest first. */
function highestOf(values) {
  const [steps, count] = values.shape, highest = range(count).map((index) => Math.max(...range(steps).map((step) => values[step * count + index])));
  return range(count).sort((a, b) => highest[b] - highest[a]).slice(0, MAX_LINES);
}

/** Lines over the steps, for the places of the other axis with the highest values in any step. */
function linesFigure({ values, axes: [, axis], quantity, names, indexes }) {
  // Class indexes are no quantity.
  if (indexes) return [];
  const [steps, count] = values.shape, highest = highestOf(values);
  const nameOfPlace = (index) => names[axis]?.[index].split(",")[0] ?? `${axis} ${index}`;
  const lines = highest.map((index, rank) => ({ name: nameOfPlace(index), colour: PIN_COLOURS[rank], values: range(steps).map((step) => values[step * count + index]) }));
  const points = lines.flatMap(({ name, colour, values: lineValues }) => lineValues.map((value, step) => ({ x: step, y: value, colour, text: `${name} ${afterStep(step)}: ${formOf(quantity)(value)}` })));
  return chartFigure(`${quantity} of each ${axis}, after every layer`, { places: range(steps).map((step) => (step ? String(step - 1) : "input")), axis: "after layer", quantity, lines, points });
}

// ---- tables of numbers ----

function matricesFigure({ values, quantity }) {
  const [layers, heads] = values.shape, all = range(layers).map((layer) => slice(values, layer)), scale = lookOfPanels().fittedScale(all);
  const headsAt = (across, down) => [Math.floor(down * heads), Math.floor(across * heads)];
  const cells = all.map((layerValues, layer) => ({
    title: `layer ${layer}`, paint: (context, ...box) => drawRaster(context, rasterOfValues(layerValues, heads, heads, scale, lookOfPanels().table), ...box),
  }));
  return mosaicFigure(`${quantity} of the heads of a layer`, cells, {
    ratio: 1, maxWidth: 160,
    say: (layer, across, down) => {
      const [a, b] = headsAt(across, down);
      return `layer ${layer}, heads ${a} and ${b}: ${digits(slice(values, layer, a)[b])}`;
    },
    act: (layer, across, down) => showHeadOfLayer(layer, headsAt(across, down)[0]),
  }, { wide: true, scale });
}

/** The filters of the patch embedding; zero is the same grey in each. */
function filtersFigure({ values }, { measurements }) {
  const [count, channels, rows, columns] = values.shape, variance = measurements.find(({ axes }) => axes.join() === "component");
  const cells = range(count).map((component) => {
    const filter = slice(values, component), highest = Math.max(...filter.map(Math.abs)) || 1, level = (channel, pixel) => 127.5 * (filter[channel * rows * columns + pixel] / highest + 1);
    const grey = (pixel) => sum(range(channels).map((channel) => level(channel, pixel))) / channels;
    const raster = rasterOf(rows, columns, (pixel) => (channels === 3 ? range(3).map((channel) => level(channel, pixel)) : [grey(pixel), grey(pixel), grey(pixel)]));
    return { title: String(component), paint: (context, ...box) => drawRaster(context, raster, ...box) };
  });
  const label = (component) => (variance ? `component ${component}: ${share(variance.values[component])} of the variance` : `component ${component}`);
  return mosaicFigure("filters", cells, { ratio: rows / columns, maxWidth: 110, say: label }, { wide: true });
}

/** A map of the whole grid for each position, or for equally spaced positions of a large grid. */
function positionsFigure({ values, quantity }) {
  const [rows, columns] = values.shape, spaced = (side) => [...new Set(range(Math.min(side, MAX_POSITIONS)).map((index, _, { length }) => Math.round(length > 1 ? index * (side - 1) / (length - 1) : 0)))];
  const across = spaced(columns), positions = spaced(rows).flatMap((row) => across.map((column) => [row, column]));
  const scale = lookOfPanels().fittedScale(positions.map((position) => slice(values, ...position)));
  const cells = positions.map((position) => ({
    title: "", paint: (context, ...box) => drawRaster(context, rasterOfValues(slice(values, ...position), rows, columns, scale, lookOfPanels().table), ...box),
  }));
  return mosaicFigure(`${quantity} of each position with all others`, cells, {
    ratio: rows / columns, columns: across.length, maxWidth: 90,
    say: (index, x, y) => {
      const otherPosition = [Math.floor(y * rows), Math.floor(x * columns)];
      return `positions (${positions[index].join(", ")}) and (${otherPosition.join(", ")}): ${digits(slice(values, ...positions[index], ...otherPosition)[0])}`;
    },
  }, { wide: true, scale });
}

// By the axes of a measurement, as in DRAWINGS of vitviz/evaluation/probes/pictures.py.
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
