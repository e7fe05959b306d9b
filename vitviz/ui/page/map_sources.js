// Where the values of a map come from.

import { mapName } from "./packs.js";
import { backend, METHODS } from "./settings.js";

/**
 * Who computes the map of a token with these parameters; `computed_by` of `packs.py` decides the same for the server.
 * @param {string} method
 * @param {string[]} names
 * @param {Facts} facts
 */
export function computedBy(method, names, facts) {
  const { computed_by: record, page_parameters: own } = METHODS[method];
  const isComputed = record === "page" || (record === "rollouts" && facts.rolls);
  if (isComputed && names.every((name) => own.includes(name))) return "page";
  return record === "run" || !facts.rolls ? "run" : "quick";
}

/**
 * The methods that the page can show of an analysis.
 * @param {Facts} facts
 * @param {Model} model
 */
export const offeredMethods = (facts, model) =>
  Object.values(METHODS).filter(
    ({ name }) => !model.refusals[name] && (backend.offers(name) || computedBy(name, [], facts) === "page"),
  );

/**
 * The file of a map that the page does not compute.
 * @param {string} method
 * @param {Record<string, any>} parameters
 */
export const mapFile = (method, parameters) => ({ name: mapName(method, parameters), map: { method, parameters } });

/**
 * Where a map comes from. Its kind is "live" (the page computes it from queries and keys), "rollout" (a row of the file
 * with the rollouts of all tokens) or "map" (a file of its own).
 * @param {any} options its method and parameters
 * @param {Query} query of the map; undefined or null for the model's own
 * @param {number | null} token the query's; null if it is no single one
 * @param {Facts} facts
 * @returns {MapSource}
 */
export function mapSource({ method, parameters }, query, token, facts) {
  if (token !== null && computedBy(method, Object.keys(parameters), facts) === "page") {
    return METHODS[method].computed_by === "rollouts" ? { kind: "rollout", file: { name: "rollout" } } : { kind: "live", file: null };
  }
  const { query: own, ...others } = parameters;
  return { kind: "map", file: mapFile(method, query === undefined || query === null ? others : { ...others, query }) };
}
