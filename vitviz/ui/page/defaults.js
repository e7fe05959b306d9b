// Defaults of parameters.

/**
 * The default of a parameter for an analysis.
 * @param {Parameter} record
 * @param {Pick<Facts, "layers">} facts
 */
export const defaultOf = (record, facts) =>
  record.kind === "layer" && record.default < 0 ? facts.layers + record.default : record.default;
