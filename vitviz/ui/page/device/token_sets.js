// Sets of tokens of one picture: those of a query, and those that are left out, as vitviz/attention/sinks.py finds them.

/** @typedef {import("./trace.js").Trace} TraceOfSets */

const OUTLIER_RATIO = 2, OUTLIER_DEVIATIONS = 10;
/** Even shares of the attention that a sink exceeds. */
export const SINK_RATIO = 10;
export const OUTLIER_RULE =
  `the larger of ${OUTLIER_RATIO} times the median of all patches and the median plus ${OUTLIER_DEVIATIONS} median absolute deviations`;

/**
 * A query, or the default one: the CLS token, or all patches where there is none.
 * @param {{ prefix: string[] }} shape
 * @param {Query} query
 */
export const queryOrDefault = ({ prefix }, query) => query ?? (prefix.includes("cls") ? "cls" : "patches");

/**
 * The tokens of a query: one, or all patches.
 * @param {Pick<import("./trace.js").TraceShape, "prefix" | "rows" | "columns">} shape
 * @param {Query} query
 */
export function tokensOfQuery({ prefix, rows, columns }, query) {
  const token = queryOrDefault({ prefix }, query);
  if (token === "patches") return Array.from({ length: rows * columns }, (_, patch) => prefix.length + patch);
  return [Array.isArray(token) ? prefix.length + token[0] * columns + token[1] : prefix.indexOf(token)];
}

/**
 * The median as torch takes it: the lower one of two.
 * @param {Float32Array} values
 */
export const medianOf = (values) => values.slice().sort()[Math.floor((values.length - 1) / 2)];

/**
 * The threshold above which the norm of a patch is an outlier where the tokens enter the last layer.
 * @param {TraceOfSets} trace
 */
export function outlierThreshold(trace) {
  const norms = normsOfPatches(trace), median = medianOf(norms), deviation = medianOf(norms.map((norm) => Math.abs(norm - median)));
  return Math.max(OUTLIER_RATIO * median, median + OUTLIER_DEVIATIONS * deviation);
}

/**
 * The norms of the patches as they enter the last layer.
 * @param {TraceOfSets} trace
 */
export function normsOfPatches({ norms, tokens, shape: { layers, prefix } }) {
  return norms.slice((layers - 1) * tokens + prefix.length, layers * tokens);
}

/**
 * The patches of outlying norm.
 * @param {TraceOfSets} trace
 */
export function outlierPatches(trace) {
  const threshold = outlierThreshold(trace), norms = normsOfPatches(trace), first = trace.shape.prefix.length;
  return [...norms.keys()].filter((patch) => norms[patch] > threshold).map((patch) => first + patch);
}

/**
 * Their number as the beginning of a sentence.
 * @param {TraceOfSets} trace
 */
export function outlierSentence(trace) {
  const count = outlierPatches(trace).length, { rows, columns } = trace.shape;
  return `${count ? `${count} of ${rows * columns} patches` : "No patch"} ${count < 2 ? "is an outlier" : "are outliers"}`;
}

/**
 * The patches that receive more than SINK_RATIO even shares of the attention in some layer, in the mean of its heads.
 * @param {TraceOfSets} trace
 */
export function sinkPatches(trace) {
  const { tokens, shape: { layers, heads, prefix } } = trace, received = trace.received();
  const isSink = (/** @type {number} */ token) => Array.from({ length: layers }, (_, layer) => layer).some((layer) => {
    let sum = 0;
    for (let head = 0; head < heads; head++) sum += received[(layer * heads + head) * tokens + token];
    return sum / heads * tokens > SINK_RATIO;
  });
  return Array.from({ length: tokens }, (_, token) => token).filter((token) => token >= prefix.length && isSink(token));
}

/**
 * Sets that a map may leave out, by name: their names in captions, and their tokens.
 * @type {Record<string, { name: string, find: (trace: TraceOfSets) => number[] }>}
 */
const LEFT_OUT = {
  outliers: { name: "outlier patches", find: outlierPatches },
  sinks: { name: "sink patches", find: sinkPatches },
};
const MAX_NAMED_TOKENS = 4;

/**
 * The tokens that a map leaves out, and how its caption says so.
 * @param {TraceOfSets} trace
 * @param {string | null | undefined} name
 */
export function leftOut(trace, name) {
  if (!name) return { excluded: [], caption: "" };
  const { name: plural, find } = LEFT_OUT[name], excluded = find(trace), { prefix, rows, columns } = trace.shape;
  if (excluded.length === rows * columns) throw Error(`All ${rows * columns} patches would be left out; none would show.`);
  if (!excluded.length) return { excluded, caption: `without ${plural}, of which there are none` };
  const places = excluded.slice(0, MAX_NAMED_TOKENS).map((token) => {
    const patch = token - prefix.length;
    return `(${Math.floor(patch / columns)}, ${patch % columns})`;
  }).join(", ");
  const more = excluded.length > MAX_NAMED_TOKENS ? ` and ${excluded.length - MAX_NAMED_TOKENS} more` : "";
  const kind = excluded.length > 1 ? plural : plural.replace(/es$/, "");
  return { excluded, caption: `without ${excluded.length} ${kind}: ${places}${more}` };
}
