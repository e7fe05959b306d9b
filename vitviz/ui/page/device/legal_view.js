// Views that are legal for a model and a picture, as vitviz/ui/normalize.py makes them.

import { defaultOf } from "../defaults.js";

/** The method that every model can have. */
const SAFE_METHOD = "attention";
const SET_TITLES = { pins: "pins", heads_off: "heads switched off", patches_off: "patches switched off" };

/**
 * A view without what its model or picture lacks, and a sentence for each value that was changed.
 * @param {View} view
 * @param {Pick<Settings, "methods" | "probes">} settings
 * @param {Facts} facts
 * @param {Model} model
 */
export function legalView(view, { methods, probes }, facts, model) {
  const methodOf = (/** @type {string} */ name) => methods.find((each) => each.name === name), reason = model.refusals[view.method];
  const method = methodOf(reason ? SAFE_METHOD : view.method), probe = probes.find(({ name }) => name === view.probe);
  const replaced = `${methodOf(view.method)?.title}: ${reason} Shown instead: ${method?.title.toLowerCase()}.`;
  const isInside = (/** @type {Cell} */ [row, column]) => row < facts.rows && column < facts.columns;
  const patches = view.patches_off.filter(isInside), parameters = legalParameters(view.parameters, method?.parameters ?? [], facts, model);
  const ofProbe = legalParameters(view.probe_parameters, probe?.parameters ?? [], facts, model);
  const sets = {
    pins: view.pins.filter((pin) => isToken(pin, facts)),
    heads_off: view.heads_off.filter(([layer, head]) => layer < facts.layers && head < facts.heads),
    patches_off: patches.length < facts.rows * facts.columns ? patches : [],
  };
  const lacking = Object.entries(SET_TITLES).map(([name, title]) => {
    const count = /** @type {any} */ (view)[name].length - /** @type {any} */ (sets)[name].length;
    return count ? `Left out of the ${title}: ${count}, which this model and picture lack.` : "";
  });
  const legal = {
    ...view, ...sets, alike: view.alike && isInside(view.alike) ? view.alike : null,
    fit: view.fit === model.fit ? null : view.fit, method: method?.name ?? SAFE_METHOD,
    parameters: parameters.values, probe_parameters: ofProbe.values,
  };
  return { view: legal, notes: [reason ? replaced : "", ...parameters.notes, ...lacking, ...ofProbe.notes].filter(Boolean) };
}

/**
 * The legal values that are no defaults, and a sentence for each that is not legal.
 * @param {Record<string, any>} values
 * @param {Parameter[]} records
 * @param {Facts} facts
 * @param {Model} model
 */
function legalParameters(values, records, facts, model) {
  const given = records.filter(({ name }) => (values[name] ?? null) !== null);
  const isLegal = (/** @type {Parameter} */ record) => LEGAL[record.kind](values[record.name], record, facts, model);
  const presetOf = (/** @type {Parameter} */ record) => (record.kind === "token" ? model.default_query : defaultOf(record, facts));
  const others = given.filter((record) => isLegal(record) && values[record.name] !== presetOf(record));
  return {
    values: Object.fromEntries(others.map(({ name }) => [name, values[name]])),
    notes: given.filter((record) => !isLegal(record)).map(({ name, title }) => {
      const value = values[name], text = Array.isArray(value) ? ` (${value.join(", ")})` : typeof value === "object" ? "" : ` ${value}`;
      return `${title}${text}: this model and picture lack it. The default is shown.`;
    }),
  };
}

/**
 * Whether a value of a kind is legal.
 * @type {Record<string, (value: any, record: Parameter, facts: Facts, model: Model) => boolean>}
 */
const LEGAL = {
  layer: (value, record, { layers }) => isIndex(value, layers),
  head: (value, record, { heads }) => typeof value === "string" || isIndex(value, heads),
  number: (value, { minimum, maximum }) => value >= minimum && value <= maximum,
  switch: (value) => typeof value === "boolean",
  choice: (value, { options }) => options.some((option) => option.value === value),
  token: (value, record, facts) => value === "patches" || isToken(value, facts),
  // Only the app knows other targets, such as texts.
  class: (value, record, facts, { labels }) =>
    (typeof value === "number" ? isIndex(value, labels.length) : Object.entries(value)
      .every(([name, index]) => name === "margin" || (["class", "against"].includes(name) && isIndex(index, labels.length)))),
};

/**
 * @param {any} value
 * @param {number} count
 */
const isIndex = (value, count) => Number.isInteger(value) && value >= 0 && value < count;

/**
 * @param {Query} query
 * @param {Facts} facts
 */
function isToken(query, { prefix, rows, columns }) {
  return Array.isArray(query) ? isIndex(query[0], rows) && isIndex(query[1], columns) : prefix.includes(String(query));
}
