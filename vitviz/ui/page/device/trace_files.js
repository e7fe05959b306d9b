// The files of a picture's attention for the page, as vitviz/ui/packs.py writes them, in 32 bits.

import { products } from "../attention.js";
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
 * Queries, keys and sums of one layer; the keys without each head's mean key, which changes no weight.
 * @param {TraceOfFiles} trace
 * @param {number} layer
 */
function layerFile(trace, layer) {
  const { tokens, shape: { heads, dim } } = trace, [queries, keys] = trace.layer(layer), shape = [heads, tokens, dim];
  const centred = keys.slice(), sums = trace.logSums(layer).slice(), meanScores = new Float32Array(tokens);
  for (let head = 0; head < heads; head++) {
    const own = centred.subarray(head * tokens * dim, (head + 1) * tokens * dim), mean = new Float64Array(dim);
    for (let index = 0; index < own.length; index++) mean[index % dim] += own[index] / tokens;
    for (let index = 0; index < own.length; index++) own[index] -= mean[index % dim];
    products(mean, 0, queries, head * tokens, dim, meanScores);
    for (let token = 0; token < tokens; token++) sums[head * tokens + token] -= meanScores[token];
  }
  return writePack({
    queries: { values: queries, shape },
    keys: { values: centred, shape },
    log_sums: { values: sums, shape: [heads, tokens] },
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
