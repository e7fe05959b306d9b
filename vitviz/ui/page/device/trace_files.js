// The files of a picture's attention for the page, as vitviz/ui/packs.py writes them, but in 32 bits, with keys as they are.

import { DEVICE_MAPS } from "./maps.js";
import { writeMap, writePack } from "./pack_writer.js";
import { allRollouts } from "./rollouts.js";

/** @typedef {import("./trace.js").Trace} TraceOfFiles */

/**
 * A file by its name: "layer 0" and so on, and "rollout".
 * @param {TraceOfFiles} trace
 * @param {string} name
 */
export function traceFile(trace, name) {
  const { tokens } = trace;
  if (name !== "rollout") return layerFile(trace, Number(name.slice("layer ".length)));
  return writePack({ rows: { values: Float32Array.from(allRollouts(trace), (share) => share * tokens), shape: [tokens, tokens] } });
}

/**
 * Queries, keys and sums of one layer.
 * @param {TraceOfFiles} trace
 * @param {number} layer
 */
function layerFile(trace, layer) {
  const { tokens, shape: { heads, dim } } = trace, [queries, keys] = trace.layer(layer), shape = [heads, tokens, dim];
  return writePack({
    queries: { values: queries, shape }, keys: { values: keys, shape }, log_sums: { values: trace.logSums(layer), shape: [heads, tokens] },
  });
}

/**
 * The file of a map.
 * @param {TraceOfFiles} trace
 * @param {string} method
 * @param {any} parameters all of them
 */
export function mapFileOf(trace, method, parameters) {
  return writeMap(DEVICE_MAPS[method](trace, parameters), trace.shape);
}
