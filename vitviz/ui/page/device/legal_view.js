// Views that are legal for a model and a picture, as vitviz/ui/normalize.py makes them.

/** The method that every model can have. */
const SAFE_METHOD = "attention";

/**
 * A view without what its model or picture lacks.
 * @param {View} view
 * @param {Pick<Settings, "methods" | "probes">} settings
 * @param {Facts} facts
 * @param {Model} model
 * @returns {View}
 */
export function legalView(view, { methods, probes }, facts, model) {
  const method = model.refusals[view.method] ? SAFE_METHOD : view.method;
  const records = methods.find(({ name }) => name === method)?.parameters ?? [];
  const probeRecords = probes.find(({ name }) => name === view.probe)?.parameters ?? [];
  const isInside = (/** @type {Cell} */ [row, column]) => row < facts.rows && column < facts.columns;
  const patchesOff = view.patches_off.filter(isInside);
  return {
    ...view,
    fit: view.fit === model.fit ? null : view.fit,
    method,
    parameters: legalParameters(view.parameters, records, facts, model),
    pins: view.pins.filter((pin) => isToken(pin, facts)),
    heads_off: view.heads_off.filter(([layer, head]) => layer < facts.layers && head < facts.heads),
    patches_off: patchesOff.length < facts.rows * facts.columns ? patchesOff : [],
    probe_parameters: legalParameters(view.probe_parameters, probeRecords, facts, model),
  };
}

/**
 * @param {Record<string, any>} values
 * @param {Parameter[]} records
 * @param {Facts} facts
 * @param {Model} model
 */
function legalParameters(values, records, facts, model) {
  return Object.fromEntries(Object.entries(values).filter(([name, value]) => {
    const record = records.find((each) => each.name === name);
    return record && value !== null && LEGAL[record.kind](value, record, facts, model);
  }));
}

/**
 * Whether a value of a kind is legal.
 * @type {Record<string, (value: any, record: Parameter, facts: Facts, model: Model) => boolean>}
 */
const LEGAL = {
  layer: (value, record, { layers }) => isIndex(value, layers) && value !== (record.default < 0 ? layers + record.default : record.default),
  head: (value, record, { heads }) => (typeof value === "number" ? isIndex(value, heads) : value !== record.default),
  number: (value, { minimum, maximum, default: preset }) => value >= minimum && value <= maximum && value !== preset,
  choice: (value, { options, default: preset }) => value !== preset && options.some((option) => option.value === value),
  token: (value, record, facts, model) => value !== model.default_query && (value === "patches" || isToken(value, facts)),
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
