// What a change of the page keeps of its question.
//
// A question is what the visitor asks of a map: its token, class, layer, head and other parameters. What they choose by click,
// key, menu or link is asked, and stays asked where it still means the same:
// - Another method answers what is asked, as far as it has such parameters, and has its own defaults for the rest.
// - Another picture or grid of patches has other squares. Another picture has another answer, about which "why" is; another
//   model has other classes, layers and heads. Beside another map, both are about one class, layer and head.
// - Going back, and a reload, bring back what was asked then; all that a link names is asked.
// What the page chose, such as the square with which it opens, is never asked: it goes with the next method, and another
// picture opens on its own far look. The pointer asks nothing.

import { hasClasses, withoutPlaces } from "./class_names.js";

/** @typedef {Record<string, any>} Values parameters by name; one name means the same in every method */
/** @typedef {Record<string, Pick<Method, "parameters">>} Methods */

/**
 * Values with others, of which null removes one.
 * @param {Values} values
 * @param {Values=} change
 */
export function withValues(values, change = {}) {
  return Object.fromEntries(Object.entries({ ...values, ...change }).filter(([, value]) => value !== null && value !== undefined));
}

/**
 * The values of parameters that a method has.
 * @param {Values} values
 * @param {string} method
 * @param {Methods} methods
 * @returns {Values}
 */
export function answeredBy(values, method, methods) {
  const names = methods[method]?.parameters.map(({ name }) => name) ?? [];
  return Object.fromEntries(Object.entries(values).filter(([name]) => names.includes(name)));
}

/**
 * What is asked still, where a view shows something else: a default, another head beside it, or what the app corrected.
 * @param {Values} question
 * @param {View} view
 * @param {Methods} methods
 */
export function questionLeft(question, { method, parameters }, methods) {
  const answered = answeredBy(question, method, methods);
  const isShown = (/** @type {string} */ name) => JSON.stringify(parameters[name]) === JSON.stringify(question[name]);
  return Object.fromEntries(Object.entries(question).filter(([name]) => !(name in answered) || isShown(name)));
}

/**
 * A view with another method, picture, model, fit or resolution, and what is asked of it then.
 * @param {View} view
 * @param {Values} question
 * @param {Partial<View>} change
 * @param {boolean} isBeside whether another map is shown beside it
 * @param {Methods} methods
 * @returns {{ view: View, question: Values }}
 */
export function changed(view, question, change, isBeside, methods) {
  const [isPicture, isModel] = [change.picture !== undefined, change.model !== undefined];
  const isGrid = isPicture || isModel || "fit" in change || "resolution" in change;
  const kinds = Object.fromEntries(Object.values(methods).flatMap(({ parameters }) => parameters.map(({ name, kind }) => [name, kind])));
  const losesClasses = isModel || (isPicture && !isBeside);
  /** @type {Record<string, (value: any) => any>} */
  const keeps = {
    token: (value) => (isGrid && Array.isArray(value) ? null : value),
    layer: (value) => (isModel && !isBeside ? null : value),
    head: (value) => (isModel && !isBeside ? null : value),
    // A patch of another picture is still one where this picture changes.
    class: (value) => (losesClasses && hasClasses(value) ? null : isGrid && !(isPicture && value?.like) ? withoutPlaces(value) : value),
  };
  const keptOf = (/** @type {[string, any]} */ [name, value]) => [name, kinds[name] in keeps ? keeps[kinds[name]](value) : value];
  const keep = (/** @type {Values} */ values) => withValues(Object.fromEntries(Object.entries(values).map(keptOf)));
  const remaining = keep(question), method = change.method ?? view.method, { query, ...others } = view.probe_parameters ?? {};
  return {
    question: remaining,
    view: {
      ...view,
      ...change,
      parameters: method === view.method && (isBeside || !isGrid) ? keep(view.parameters) : answeredBy(remaining, method, methods),
      ...(isGrid && { pins: [], patches_off: [], alike: null }),
      ...((isPicture || isModel) && { heads_off: [] }),
      ...(isGrid && Array.isArray(query) && { probe_parameters: others }),
      ...(isModel && { probe_parameters: {} }),
    },
  };
}

/**
 * A view of another picture as it opens where nothing is asked of its attention: on its far look, or else with the method
 * that says why.
 * @param {View} view
 * @param {Values} question
 * @param {Facts} facts
 * @param {string} why
 */
export function openingView(view, question, { look }, why) {
  if (["query", "layer", "head", "direction"].some((name) => name in question)) return view;
  const found = look && { layer: look.layer, head: look.head, query: look.query };
  return { ...view, method: look ? "attention" : why, parameters: found ?? {} };
}
