// A question in words, and how the map of a method differs from it.

import { labelOf } from "./class_names.js";
import { digits } from "./numbers.js";
import { answeredBy } from "./question_rule.js";
import { METHODS } from "./settings.js";
import { longNameOf, queryOf } from "./token_names.js";
import { classOf, hasParameter, parametersOf, placeOf, tokenOf, valueOf } from "./tokens.js";

const NAMED = ["query", "target", "layer", "head", "start_layer", "end_layer"];

/**
 * What a question asks of a method: where it starts, what it is about, the layers that it reads, and its options.
 * @param {string} method
 * @param {Record<string, any>} question
 * @param {Facts} facts
 * @param {Model} model
 */
function wordsOf(method, question, facts, model) {
  const parameters = answeredBy(question, method, METHODS), asking = /** @type {View} */ ({ method, parameters });
  const { query } = parameters, start = tokenOf(query, facts, model);
  const token = query ?? (start !== null ? queryOf(start, facts) : model.pools_by_attention ? null : "patches");
  const layers = hasParameter(method, "start_layer")
    ? `layers ${valueOf(asking, "start_layer", facts)} to ${valueOf(asking, "end_layer", facts)}` : placeOf(asking, facts);
  const options = Object.entries(parameters).filter(([name]) => !NAMED.includes(name));
  return {
    token: hasParameter(method, "query") ? longNameOf(token) : "",
    about: METHODS[method].about_a_class ? aboutOf(asking, facts, model) : "",
    layers: layers || "the whole network",
    options: options.map(([name, value]) => {
      const { title, kind, options: choices } = parametersOf(method)[name];
      return kind === "switch" ? title : `${title}: ${choices?.find((choice) => choice.value === value)?.title ?? digits(value)}`;
    }),
  };
}

/**
 * What a map is about.
 * @param {View} view
 * @param {Facts} facts
 * @param {Model} model
 */
function aboutOf(view, facts, model) {
  const { target } = view.parameters, index = target?.class ?? classOf(view, facts) ?? facts.predictions[0]?.index;
  const quoted = (/** @type {number} */ at) => `“${labelOf(model, at)}”`, first = index === undefined ? "its output" : quoted(index);
  if (typeof target !== "object") return first;
  if (target.text !== undefined) return `“${target.text}”`;
  const place = target.patch && longNameOf(target.patch);
  if (target.like) return `likeness to ${place ? `${place} of ` : ""}another picture`;
  if (place) return `likeness to ${place}`;
  return `${first} against ${target.margin ? "the best of the others" : quoted(target.against)}`;
}

/**
 * A question in one line; of layers, those of a method that reads one, and of a method that follows all.
 * @param {Record<string, any>} question
 * @param {Facts} facts
 * @param {Model} model
 */
export function lineOfQuestion(question, facts, model) {
  const [one, all, { about }] = ["attention", "rollout", "relevance"].map((method) => wordsOf(method, question, facts, model));
  return `One question for all: from ${one.token}, about ${about}; ${one.layers}, or ${all.layers}.`;
}

/**
 * Which layers the map of a method reads, and what else in it is not of the question's line.
 * @param {string} method
 * @param {Record<string, any>} question
 * @param {Facts} facts
 * @param {Model} model
 */
export function differenceOfMethod(method, question, facts, model) {
  const { token, about, layers, options } = wordsOf(method, question, facts, model);
  return [layers, token ? "" : "from no single token", about ? "" : "about no class", ...options].filter(Boolean).join(" · ");
}
