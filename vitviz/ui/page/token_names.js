// Tokens by their names.

/**
 * The query of a token, as the library takes it.
 * @param {number} token
 * @param {{ prefix: string[], columns: number }} facts
 * @returns {Cell | string}
 */
export function queryOf(token, facts) {
  if (token < facts.prefix.length) return facts.prefix[token];
  const patch = token - facts.prefix.length;
  return [Math.floor(patch / facts.columns), patch % facts.columns];
}

/**
 * The name of a token in labels.
 * @param {Query} query
 */
export function nameOf(query) {
  if (Array.isArray(query)) return `patch (${query.join(", ")})`;
  if (query === "patches") return "mean patch";
  if (query === null || query === undefined) return "pooling query";
  return query === "cls" ? "CLS" : query;
}

/** @type {Record<string, string>} */
const LONG_NAMES = { cls: "the CLS token", distillation: "the distillation token", patches: "the mean patch" };

/**
 * The name of a token in captions, as the library's captions have it.
 * @param {Query} query
 */
export const longNameOf = (query) => LONG_NAMES[String(query)] ?? nameOf(query);

/**
 * An index as a caption names it, with the range, which shows that indexes begin at 0.
 * @param {string} kind
 * @param {number} index
 * @param {number} count
 */
export const numbered = (kind, index, count) => (count > 1 ? `${kind} ${index} of 0–${count - 1}` : `${kind} ${index}`);
