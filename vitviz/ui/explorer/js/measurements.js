// What a probe measured, as figures: how a measurement is drawn follows from its axes.

// Lines or classes that can be told apart.
const MAX_LINES = 6;
// Of each side of the grid, in a sheet of one map for each position.
const MAX_POSITIONS = 9;
const OTHER_CLASS = "#8a8f98";
const MEAN_COLOUR = "#56b4e9", HEAD_COLOUR = "#d55e00";

const stepName = (step) => (step === 0 ? "input" : `layer ${step - 1}`);
const afterStep = (step) => (step === 0 ? "before the first layer" : `after layer ${step - 1}`);
const isKnown = (value) => !Number.isNaN(value);
const sumOf = (values) => values.reduce((sum, value) => sum + value, 0);
const rangeOf = (count) => [...Array(count).keys()];
const sentenceCase = (text) => text[0].toUpperCase() + text.slice(1);
const bytesOf = (colour) => [1, 3, 5].map((start) => parseInt(colour.slice(start, start + 2), 16));

/** The values of one place along the first axis, or along the first ones. */
function slice(values, ...places) {
  const size = values.shape.slice(places.length).reduce((product, side) => product * side, 1);
  const start = places.reduce((sum, place, axis) => sum * values.shape[axis] + place, 0) * size;
  const part = values.subarray(start, start + size);
  part.shape = values.shape.slice(places.length);
  return part;
}

/**
 * The figures of a measurement: each with a title, parts to be put on the page, draw(width, ink), where it has one the
 * scale of its colours, whether it takes the whole width, and follow(token) where it shows another token at once.
 * @param measurement name, values with their shape, axes, quantity, names, indexes, is_flag
 * @param context of its probe: pane, all measurements by their axes, parameters, hooks, and the look of maps
 */
function figuresOf(measurement, context) {
  const make = FIGURES[measurement.axes.join(" ")];
  return make ? [make(measurement, context)].flat().filter(Boolean) : [];
}

/** A mosaic with what a figure says of it. */
function mosaicFigure(title, cells, options, others = {}) {
  const mosaic = new Mosaic(cells, options);
  return { title: sentenceCase(title), parts: mosaic.parts, draw: (width, ink) => mosaic.draw(width, ink), mosaic, ...others };
}

function chartFigure(title, options) {
  const chart = new Chart(options);
  return { title: sentenceCase(title), parts: chart.parts, draw: (width) => chart.draw(width), chart };
}

// ---- maps on the picture ----

/** The picture under a map; a canvas of its own, since a painter fills all of one. */
function onPicture(pane, paintOn) {
  return (context, left, top, width, height) => {
    const times = context.getTransform().a, canvas = canvasOf(...[width, height].map((side) => Math.max(1, Math.round(side * times))));
    paintOn(canvas);
    context.drawImage(canvas, left, top, width, height);
  };
}

const cellOf = ({ pane }, across, down) => pane.painter.cellAt(across, down);
const patchesOf = ({ pane }, values) => values.subarray(pane.attention.prefix);

/** Maps of tokens on one scale; `tokens` has the values of each, `marked` the tokens that are outlined. */
function mapsFigure(title, titles, tokens, context, { say, act = null, wide = true, most = 200, marked = [], quantity }) {
  const { pane, hooks } = context, maps = tokens.map((values) => patchesOf(context, values));
  const fit = () => hooks.look().fittedScale(maps.map((values) => values.filter(isKnown)));
  const scale = fit();
  const cells = titles.map((name, place) => ({
    title: name,
    paint: onPicture(pane, (canvas) => {
      const { table, look } = hooks.look();
      pane.painter.paint(canvas, maps[place], scale, table, look);
      for (const token of marked) pane.painter.mark(canvas, pane.attention.cell(token), OUTLIER_COLOUR, Math.max(1, canvas.width / 300), true);
    }),
  }));
  const options = { ratio: pane.painter.ratio, most };
  const at = (run) => run && ((place, across, down) => {
    const cell = cellOf(context, across, down);
    return cell ? run(place, cell, tokens[place][pane.attention.token(...cell)]) : "";
  });
  return mosaicFigure(title, cells, { ...options, say: at(say), act: at(act) }, { wide, scale, quantity });
}

function tokenFigure(measurement, context) {
  const { measurements } = context, alike = measurements.filter(({ axes }) => axes.join() === "token");
  const vectors = measurements.find(({ axes }) => axes.join() === "token,feature"), flags = alike.find(({ is_flag }) => is_flag);
  if (vectors) return comparedFigure(measurement, vectors, context);
  // What is true or false of tokens is outlined on the map beside it.
  if (measurement.is_flag && alike.length > 1) return [];
  const marked = flags ? rangeOf(flags.values.length).filter((token) => flags.values[token] && token >= context.pane.attention.prefix) : [];
  return mapsFigure(measurement.quantity, [""], [measurement.values], context, {
    wide: false, most: 460, marked, say: (place, cell, value) => `${nameOf(cell)}: ${digits(value)}`,
  });
}

/** One token compared with all others; with that under the pointer at once, since the vectors of all are here. */
function comparedFigure(measurement, vectors, context) {
  const { pane, hooks, parameters } = context, [tokens, features] = vectors.values.shape, { prefix } = pane.attention;
  const asked = parameters.query ?? defaultOf(PROBES[context.probe].parameters.find(({ kind }) => kind === "token"), pane.facts);
  const own = tokenOf(asked, pane.facts, null);
  let token = own, values = measurement.values, scale = null;
  const shown = { wide: false };
  const compare = (next) => {
    token = next ?? own;
    if (next === null || next === own) values = measurement.values;
    else {
      values = new Float32Array(tokens);
      products(vectors.values, next, vectors.values, 0, features, values);
    }
    // A token is as like itself as can be, which says nothing.
    scale = hooks.look().fittedScale([patchesOf(context, values).filter((_, patch) => patch + prefix !== token)]);
    shown.scale = scale;
    const name = token === null ? nameOf(asked) : nameOf(queryOf(token, pane.facts));
    shown.title = sentenceCase(`${measurement.quantity} of ${name} with every token`);
    shown.note = pane.facts.prefix.map((each, place) => `${nameOf(each)} ${digits(values[place])}`).join(" · ");
  };
  compare(null);
  const cell = { title: "", paint: onPicture(pane, (canvas) => {
    const { table, look } = hooks.look();
    pane.painter.paint(canvas, patchesOf(context, values), scale, table, look);
    if (token !== null && token >= prefix) pane.painter.mark(canvas, pane.attention.cell(token), "white", Math.max(1, canvas.width / 300));
  }) };
  const under = (across, down) => {
    const found = cellOf(context, across, down);
    return found && pane.attention.token(...found);
  };
  const mosaic = new Mosaic([cell], {
    ratio: pane.painter.ratio, most: 460,
    say: (_, across, down) => {
      const next = under(across, down);
      if (next !== null && next !== token) shown.changed(next);
      return next === null ? "" : `${nameOf(queryOf(next, pane.facts))}: ${digits(measurement.values[next])} with ${nameOf(asked)}`;
    },
    act: (_, across, down) => cellOf(context, across, down) && hooks.parameter("query", cellOf(context, across, down)),
    left: () => shown.changed(null),
  });
  // The page says when another is shown, since its title then changes.
  return Object.assign(shown, {
    parts: mosaic.parts, mosaic, follow: compare, changed: () => {}, draw: (width, ink) => mosaic.draw(width, ink), values: () => Array.from(values),
  });
}

function stepsFigure(measurement, context) {
  const { values, quantity, indexes } = measurement, prefix = context.pane.attention.prefix;
  // After the last layer, a model that classifies its CLS token has no patches.
  const steps = rangeOf(values.shape[0]).filter((step) => slice(values, step).subarray(prefix).some(isKnown));
  if (indexes) return classesFigure(measurement, steps, context);
  return mapsFigure(`${quantity}, after every layer`, steps.map(stepName), steps.map((step) => slice(values, step)), context, {
    quantity, say: (place, cell, value) => `${nameOf(cell)} ${afterStep(steps[place])}: ${formOf(quantity)(value)}`,
  });
}

/** Which class each patch says after every layer: those that most say have colours of their own. */
function classesFigure({ values, names, indexes }, steps, context) {
  const { pane, hooks } = context, { prefix } = pane.attention, { rows, columns } = pane.facts;
  const labels = names[indexes] ?? context.measurements.map((each) => each.names[indexes]).find(Boolean) ?? [];
  const nameOfClass = (index) => (labels[index] ?? `${indexes} ${index}`).split(",")[0], counts = new Map();
  for (const step of steps) for (const index of slice(values, step).subarray(prefix)) counts.set(index, (counts.get(index) ?? 0) + 1);
  const most = [...counts].sort(([, one], [, other]) => other - one).slice(0, MAX_LINES).map(([index]) => index);
  // A class has the colour of its line, where it has one.
  const lines = context.measurements.find(({ axes }) => axes.join() === `step,${indexes}`), drawn = lines ? highestOf(lines.values) : [];
  const free = PIN_COLOURS.filter((_, place) => !most.includes(drawn[place]));
  const colours = new Map(most.map((index) => [index, drawn.includes(index) ? PIN_COLOURS[drawn.indexOf(index)] : free.shift()]));
  const colourOf = (index) => colours.get(index) ?? OTHER_CLASS;
  const cells = steps.map((step) => {
    const patches = slice(values, step).subarray(prefix), raster = rasterOf(rows, columns, (patch) => bytesOf(colourOf(patches[patch])));
    return { title: stepName(step), paint: onPicture(pane, (canvas) => overPicture(pane, canvas, raster, hooks.look().look.opacity)) };
  });
  const others = counts.size > most.length ? [{ name: `${counts.size - most.length} others`, colour: OTHER_CLASS }] : [];
  return mosaicFigure(`The ${indexes} that each patch speaks for`, cells, {
    ratio: pane.painter.ratio,
    say: (place, across, down) => {
      const cell = cellOf(context, across, down);
      return cell && `${nameOf(cell)} ${afterStep(steps[place])}: ${nameOfClass(slice(values, steps[place])[pane.attention.token(...cell)])}`;
    },
  }, { wide: true, key: [...most.map((index) => ({ name: nameOfClass(index), colour: colourOf(index) })), ...others] });
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
  const means = rangeOf(layers).map((layer) => Float32Array.from({ length: tokens }, (_, token) => sumOf(rangeOf(heads).map((head) => slice(values, layer, head)[token])) / heads));
  const strongest = rangeOf(layers).map((layer) => rangeOf(heads).map((head) => {
    const patches = patchesOf(context, slice(values, layer, head)), patch = patches.indexOf(Math.max(...patches));
    return { value: patches[patch], said: ` at ${nameOf(queryOf(patch + context.pane.attention.prefix, context.pane.facts))}` };
  }));
  return [
    curves(`${quantity}: the patch with most`, quantity, strongest, context, true),
    mapsFigure(`${quantity}, mean of heads`, rangeOf(layers).map((layer) => `layer ${layer}`), means, context, {
      say: (layer, cell, value) => `${nameOf(cell)}, layer ${layer}: ${digits(value)}`, act: (layer) => context.hooks.head(layer, "mean"),
    }),
  ];
}

/** What the principal components of the patches look like as colours, on the picture's own shape. */
function coloursFigure({ values }, context) {
  const [rows, columns, channels] = values.shape, { pane } = context;
  const raster = rasterOf(rows, columns, (patch) => rangeOf(3).map((channel) => 255 * values[patch * channels + channel]));
  const cells = [{ title: "", paint: onPicture(pane, (canvas) => overPicture(pane, canvas, raster, 1)) }];
  return mosaicFigure("three principal components as red, green and blue", cells, { ratio: pane.painter.ratio, most: 460, say: (_, across, down) => {
    const cell = cellOf(context, across, down);
    return cell && `${nameOf(cell)}: ${rangeOf(3).map((channel) => digits(slice(values, ...cell)[channel])).join(", ")}`;
  } });
}

// ---- curves ----

/** A point for each head, and the mean of each layer; `found` has value and said of each layer and head. */
function curves(title, quantity, found, context, mayBeLog = false) {
  const points = found.flatMap((heads, layer) => heads.map(({ value, said }, head) => ({
    x: layer, y: value, colour: HEAD_COLOUR, said: `layer ${layer}, head ${head}: ${digits(value)}${said}`, act: () => context.hooks.head(layer, head),
  })));
  const means = found.map((heads) => heads.map(({ value }) => value).filter(isKnown)).map((values) => (values.length ? sumOf(values) / values.length : NaN));
  const lines = [{ values: means, colour: MEAN_COLOUR, name: "mean of heads" }];
  const figure = chartFigure(title, { places: found.map((_, layer) => String(layer)), axis: "layer", quantity, points, lines, mayBeLog });
  return { ...figure, note: "Every point is a head. A click on one shows it on the picture." };
}

function headsFigure({ values, quantity, names }, context) {
  const found = rangeOf(values.shape[0]).map((layer) => rangeOf(values.shape[1]).map((head) => {
    const own = Array.from(slice(values, layer, head));
    // Of several prefix tokens, what all have together.
    const each = own.length > 1 ? own.map((value, place) => `${nameOf(names.prefix?.[place] ?? String(place))} ${digits(value)}`).join(", ") : "";
    return { value: sumOf(own), said: each && ` (${each})` };
  }));
  return curves(PROBES[context.probe].title, quantity, found, context);
}

/** The places of the second axis that are highest in some step, the highest first. */
function highestOf(values) {
  const [steps, count] = values.shape, highest = rangeOf(count).map((place) => Math.max(...rangeOf(steps).map((step) => values[step * count + place])));
  return rangeOf(count).sort((one, other) => highest[other] - highest[one]).slice(0, MAX_LINES);
}

/** Lines over the steps, of those places of the other axis that are highest in some step. */
function linesFigure({ values, axes: [, axis], quantity, names, indexes }) {
  // What counts tokens is no quantity that a line could show.
  if (indexes) return [];
  const [steps, count] = values.shape, chosen = highestOf(values);
  const nameOfPlace = (place) => names[axis]?.[place].split(",")[0] ?? `${axis} ${place}`;
  const lines = chosen.map((place, order) => ({ name: nameOfPlace(place), colour: PIN_COLOURS[order], values: rangeOf(steps).map((step) => values[step * count + place]) }));
  const points = lines.flatMap(({ name, colour, values: own }) => own.map((value, step) => ({ x: step, y: value, colour, said: `${name} ${afterStep(step)}: ${formOf(quantity)(value)}` })));
  return chartFigure(`${quantity} of each ${axis}, after every layer`, { places: rangeOf(steps).map((step) => (step ? String(step - 1) : "input")), axis: "after layer", quantity, lines, points });
}

// ---- tables of numbers ----

function matricesFigure({ values, quantity }, { hooks }) {
  const [layers, heads] = values.shape, all = rangeOf(layers).map((layer) => slice(values, layer)), scale = hooks.look().fittedScale(all);
  const place = (across, down) => [Math.floor(down * heads), Math.floor(across * heads)];
  const cells = all.map((own, layer) => ({
    title: `layer ${layer}`, paint: (context, ...box) => drawRaster(context, rasterOfValues(own, heads, heads, scale, hooks.look().table), ...box),
  }));
  return mosaicFigure(`${quantity} of the heads of a layer`, cells, {
    ratio: 1, most: 160,
    say: (layer, across, down) => {
      const [one, other] = place(across, down);
      return `layer ${layer}, heads ${one} and ${other}: ${digits(slice(values, layer, one)[other])}`;
    },
    act: (layer, across, down) => hooks.head(layer, place(across, down)[0]),
  }, { wide: true, scale });
}

/** The patterns that patches are compared with; zero is the same grey in each. */
function filtersFigure({ values }, { measurements }) {
  const [count, channels, rows, columns] = values.shape, variance = measurements.find(({ axes }) => axes.join() === "component");
  const cells = rangeOf(count).map((component) => {
    const own = slice(values, component), highest = Math.max(...own.map(Math.abs)) || 1, at = (channel, pixel) => 127.5 * (own[channel * rows * columns + pixel] / highest + 1);
    const grey = (pixel) => sumOf(rangeOf(channels).map((channel) => at(channel, pixel))) / channels;
    const raster = rasterOf(rows, columns, (pixel) => (channels === 3 ? rangeOf(3).map((channel) => at(channel, pixel)) : [grey(pixel), grey(pixel), grey(pixel)]));
    return { title: String(component), paint: (context, ...box) => drawRaster(context, raster, ...box) };
  });
  const said = (component) => (variance ? `component ${component}: ${share(variance.values[component])} of the variance` : `component ${component}`);
  return mosaicFigure("filters", cells, { ratio: rows / columns, most: 110, say: said }, { wide: true });
}

/** A map of the whole grid for each position; of a large grid, for some at equal distances. */
function positionsFigure({ values, quantity }, { hooks }) {
  const [rows, columns] = values.shape, some = (side) => [...new Set(rangeOf(Math.min(side, MAX_POSITIONS)).map((place, _, { length }) => Math.round(length > 1 ? place * (side - 1) / (length - 1) : 0)))];
  const across = some(columns), chosen = some(rows).flatMap((row) => across.map((column) => [row, column]));
  const scale = hooks.look().fittedScale(chosen.map((place) => slice(values, ...place)));
  const cells = chosen.map((place) => ({
    title: "", paint: (context, ...box) => drawRaster(context, rasterOfValues(slice(values, ...place), rows, columns, scale, hooks.look().table), ...box),
  }));
  return mosaicFigure(`${quantity} of each position with all others`, cells, {
    ratio: rows / columns, columns: across.length, most: 90,
    say: (place, x, y) => {
      const other = [Math.floor(y * rows), Math.floor(x * columns)];
      return `positions (${chosen[place].join(", ")}) and (${other.join(", ")}): ${digits(slice(values, ...chosen[place], ...other)[0])}`;
    },
  }, { wide: true, scale });
}

// By the axes of a measurement, as DRAWINGS of vitviz/evaluation/probes/pictures.py.
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
