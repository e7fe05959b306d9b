// Defaults of parameters.

/**
 * The default of a parameter for an analysis.
 * @param {Parameter} record
 * @param {Pick<Facts, "layers">} facts
 */
export function defaultOf(record, facts) {
  return record.kind === "layer" && record.default < 0 ? facts.layers + record.default : record.default;
}
