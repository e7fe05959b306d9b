// What a view asks for: its token, and the values of its parameters.

import { defaultOf } from "./defaults.js";
import { backend, METHODS, PROBES } from "./settings.js";
import { isEqual } from "./store.js";
import { numbered } from "./token_names.js";

/**
 * The parameter records of a method by name.
 * @param {string} method
 */
export const parametersOf = (method) => Object.fromEntries(METHODS[method].parameters.map((record) => [record.name, record]));

/**
 * @param {string} method
 * @param {string} name
 */
export const hasParameter = (method, name) => METHODS[method].parameters.some((record) => record.name === name);

/**
 * The class that a map is about, by default the likeliest; undefined if it is about no class, or about more than one.
 * @param {View} view
 * @param {Facts} facts
 */
export function classOf({ method, parameters: { target } }, { predictions }) {
  if (!METHODS[method].about_a_class) return undefined;
  return typeof (target ?? 0) === "number" ? target ?? predictions[0]?.index : undefined;
}

/**
 * A parameter of a view's map, or its default for the model.
 * @param {View} view
 * @param {string} name
 * @param {Facts} facts
 */
export function valueOf(view, name, facts) {
  const record = parametersOf(view.method)[name], value = view.parameters[name];
  return value !== undefined || !record ? value : defaultOf(record, facts);
}

/**
 * The default of a probe's parameter for an analysis; the patch in the middle is the default token.
 * @param {Parameter} record
 * @param {Facts} facts
 */
export const probeDefaultOf = (record, facts) =>
  record.kind === "token" ? [Math.floor(facts.rows / 2), Math.floor(facts.columns / 2)] : defaultOf(record, facts);

/**
 * The index of a query's token; null if the query is no single token, or the picture lacks it.
 * @param {Query} query
 * @param {Facts} facts
 * @param {Model | null} model
 * @returns {number | null}
 */
export function tokenOf(query, facts, model) {
  // Some models start from the mean patch or from a learned query, which a page without a server has no maps of.
  const startsFromNone = backend.computes && (model?.pools_by_attention || model?.default_query === "patches");
  if (query === undefined || query === null) return startsFromNone ? null : facts.start;
  if (Array.isArray(query)) {
    const [row, column] = query;
    return row < facts.rows && column < facts.columns ? facts.prefix.length + row * facts.columns + column : null;
  }
  const index = facts.prefix.indexOf(query);
  return index < 0 ? null : index;
}

/**
 * Layer and head of a map in words; empty for a map without them.
 * @param {View} view
 * @param {Facts} facts
 */
export function placeOf(view, facts) {
  const layer = valueOf(view, "layer", facts), head = valueOf(view, "head", facts);
  const words = [];
  if (layer !== undefined) words.push(numbered("layer", layer, facts.layers));
  if (head !== undefined) words.push(typeof head === "number" ? `head ${head}` : `${head} of ${facts.heads} heads`);
  if (view.method === "attention" && facts.windows[layer] > 1) words.push(`within its window of the ${facts.rows}×${facts.columns} grid`);
  return words.join(", ");
}

/**
 * A parameter of a probe.
 * @param {string} probe
 * @param {(record: Parameter) => boolean} test
 */
export const probeParameter = (probe, test) => /** @type {Parameter} */ (PROBES[probe].parameters.find(test));

/**
 * Whether a view shows the far look of its picture.
 * @param {View} view
 * @param {Facts} facts
 */
export const isFarLook = ({ method, parameters }, { look }) => Boolean(look) && method === "attention"
  && isEqual([parameters.layer, parameters.head, parameters.query], [look?.layer, look?.head, look?.query]) && !parameters.direction;

/**
 * Whether a pane shows the far look itself, of which a sentence says how much of the attention one place gets.
 * @param {Pane} pane
 * @param {Query} query
 */
export const isLooking = ({ view, facts }, query) => isFarLook(view, facts) && isEqual(query, facts.look?.query);
