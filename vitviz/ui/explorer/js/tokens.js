// Tokens and maps by their names.

/** The parameter records of a method by name. */
function parametersOf(method) {
  return Object.fromEntries(METHODS[method].parameters.map((each) => [each.name, each]));
}

const hasParameter = (method, name) => METHODS[method].parameters.some((each) => each.name === name);

/** A parameter of a view's map: what was chosen, or the default as the model has it. */
function valueOf(view, name, facts) {
  const record = parametersOf(view.method)[name], value = view.parameters[name];
  if (value !== undefined || !record) return value;
  return record.kind === "layer" && record.default < 0 ? facts.layers + record.default : record.default;
}

/** The default of a probe's parameter, for an analysis: of a token the patch in the middle. */
function defaultOf(record, facts) {
  if (record.kind === "token") return [Math.floor(facts.rows / 2), Math.floor(facts.columns / 2)];
  return record.kind === "layer" && record.default < 0 ? facts.layers + record.default : record.default;
}

/** A query as the index of a token; null where it is no single token, or there is none. */
function tokenOf(query, facts, model) {
  // Some models read the mean of their patches, or by a query of their own: a page without a server has no map of either.
  const isOfNone = !OFFLINE && (model?.pools_by_attention || model?.default_query === "patches");
  if (query === undefined || query === null) return isOfNone ? null : facts.start;
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

/** A token as a label names it. */
function nameOf(query) {
  if (Array.isArray(query)) return `patch (${query.join(", ")})`;
  if (query === "patches") return "mean patch";
  if (query === null || query === undefined) return "pooling query";
  return query === "cls" ? "CLS" : query;
}

/** A token as a caption names it; the library's captions use the same words. */
function longNameOf(query) {
  return { cls: "the CLS token", distillation: "the distillation token", patches: "the mean patch" }[query] ?? nameOf(query);
}

/** One of several as a caption names it: the range shows that the first is 0. */
const numbered = (kind, index, count) => (count > 1 ? `${kind} ${index} of 0–${count - 1}` : `${kind} ${index}`);

/** The name of the file of a map that the server computes. */
function mapName(method, parameters) {
  const sorted = Object.fromEntries(Object.entries(parameters).sort(([one], [other]) => (one < other ? -1 : 1)));
  return `map ${JSON.stringify([method, sorted])}`;
}

/** How a map is told from others in words: its layer and head, or that it goes through all layers. */
function placeOf(view, facts) {
  const layer = valueOf(view, "layer", facts), head = valueOf(view, "head", facts);
  const parts = [];
  if (layer !== undefined) parts.push(numbered("layer", layer, facts.layers));
  if (head !== undefined) parts.push(typeof head === "number" ? `head ${head}` : `${head} of ${facts.heads} heads`);
  if (view.method === "attention" && facts.windows[layer] > 1) parts.push("within its window");
  return parts.join(", ");
}

/** A probability or another share of a whole in percent; `percent` of vitviz/errors/messages.py. */
function share(value) {
  if (Number.isNaN(value)) return "–";
  const percent = 100 * value;
  return percent === 0 ? "0%" : percent >= 0.1 ? `${percent.toFixed(1)}%` : `${percent.toPrecision(1)}%`;
}

/** A number to three significant digits, written the same everywhere; `digits` of vitviz/errors/messages.py. */
function digits(value) {
  if (Number.isNaN(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  return size >= 1e-4 && size < 1e5 ? String(Number(value.toPrecision(3))) : value.toExponential(2);
}

/** How the values of a quantity are written. */
const formOf = (quantity) => (quantity === "probability" ? share : digits);
