// Tokens and maps by their names.

/** The parameter records of a method by name. */
function parametersOf(method) {
  return Object.fromEntries(METHODS[method].parameters.map((record) => [record.name, record]));
}

const hasParameter = (method, name) => METHODS[method].parameters.some((record) => record.name === name);

/** A parameter of a view's map, or its default for the model. */
function valueOf(view, name, facts) {
  const record = parametersOf(view.method)[name], value = view.parameters[name];
  return value !== undefined || !record ? value : defaultOf(record, facts);
}

/** The default of a parameter for an analysis. */
function defaultOf(record, facts) {
  return record.kind === "layer" && record.default < 0 ? facts.layers + record.default : record.default;
}

/** The default of a probe's parameter for an analysis; the patch in the middle is the default token. */
function probeDefaultOf(record, facts) {
  return record.kind === "token" ? [Math.floor(facts.rows / 2), Math.floor(facts.columns / 2)] : defaultOf(record, facts);
}

/** The index of a query's token; null if the query is no single token, or the picture lacks it. */
function tokenOf(query, facts, model) {
  // Some models start from the mean patch or from a learned query, which a page without a server has no maps of.
  const startsFromNone = !OFFLINE && (model?.pools_by_attention || model?.default_query === "patches");
  if (query === undefined || query === null) return startsFromNone ? null : facts.start;
  if (Array.isArray(query)) {
    const [row, column] = query;
    return row < facts.rows && column < facts.columns ? facts.prefix.length + row * facts.columns + column : null;
  }
  const index = facts.prefix.indexOf(query);
  return index < 0 ? null : index;
}

/** The query of a token, as the library takes it. */
function queryOf(token, facts) {
  if (token < facts.prefix.length) return facts.prefix[token];
  const patch = token - facts.prefix.length;
  return [Math.floor(patch / facts.columns), patch % facts.columns];
}

/** The name of a token in labels. */
function nameOf(query) {
  if (Array.isArray(query)) return `patch (${query.join(", ")})`;
  if (query === "patches") return "mean patch";
  if (query === null || query === undefined) return "pooling query";
  return query === "cls" ? "CLS" : query;
}

/** The name of a token in captions, as the library's captions have it. */
function longNameOf(query) {
  return { cls: "the CLS token", distillation: "the distillation token", patches: "the mean patch" }[query] ?? nameOf(query);
}

/** An index as a caption names it, with the range, which shows that indexes begin at 0. */
const numbered = (kind, index, count) => (count > 1 ? `${kind} ${index} of 0–${count - 1}` : `${kind} ${index}`);

/** The name of the file of a map that the server computes. */
function mapName(method, parameters) {
  const sorted = Object.fromEntries(Object.entries(parameters).sort(([a], [b]) => (a < b ? -1 : 1)));
  return `map ${JSON.stringify([method, sorted])}`;
}

/** Layer and head of a map in words; empty for a map without them. */
function placeOf(view, facts) {
  const layer = valueOf(view, "layer", facts), head = valueOf(view, "head", facts);
  const words = [];
  if (layer !== undefined) words.push(numbered("layer", layer, facts.layers));
  if (head !== undefined) words.push(typeof head === "number" ? `head ${head}` : `${head} of ${facts.heads} heads`);
  if (view.method === "attention" && facts.windows[layer] > 1) words.push("within its window");
  return words.join(", ");
}

/** A share in percent, as `percent` of vitviz/errors/number_text.py writes it. */
function share(value) {
  if (Number.isNaN(value)) return "–";
  const percent = 100 * value;
  return percent === 0 ? "0%" : percent >= 0.1 ? `${percent.toFixed(1)}%` : `${percent.toPrecision(1)}%`;
}

/** A number to three significant digits, as `digits` of vitviz/errors/number_text.py writes it. */
function digits(value) {
  if (Number.isNaN(value)) return "–";
  if (value === 0) return "0";
  const magnitude = Math.abs(value);
  return magnitude >= 1e-4 && magnitude < 1e5 ? String(Number(value.toPrecision(3))) : value.toExponential(2);
}

/** The function that writes values of a quantity. */
const formOf = (quantity) => (quantity === "probability" ? share : digits);
