// The attention of one picture from its queries and keys, as vitviz/attention/trace.py computes it.

import { fuse, products } from "../attention.js";

// Fused matrices up to this size are kept.
const MAX_FUSED_BYTES = 64 * 2 ** 20;

/** What a trace needs of a network. */
/** @typedef {{ layers: number, heads: number, dim: number, scale: number, prefix: string[], rows: number, columns: number }} TraceShape */

export class Trace {
  /**
   * @param {TraceShape} shape
   * @param {Pick<Encoding, "queries" | "keys" | "logSums" | "norms" | "pooled">} encoding of one picture
   */
  constructor(shape, { queries, keys, logSums, norms, pooled }) {
    this.shape = shape;
    this.tokens = shape.prefix.length + shape.rows * shape.columns;
    for (let index = 0; index < queries.length; index++) queries[index] *= shape.scale;
    this.queries = queries;
    this.keys = keys;
    this.sums = logSums;
    this.norms = norms;
    this.pooled = pooled;
    /** @type {Map<string, Float32Array>} */
    this.fusedMatrices = new Map();
    this.fusedKind = "";
  }

  /**
   * Queries and keys of a layer, "head token dim".
   * @param {number} layer
   */
  layer(layer) {
    const size = this.shape.heads * this.tokens * this.shape.dim;
    return [this.queries, this.keys].map((all) => all.subarray(layer * size, (layer + 1) * size));
  }

  /**
   * The logarithm of each row's sum of exponentials in a layer, "head query".
   * @param {number} layer
   */
  logSums(layer) {
    const size = this.shape.heads * this.tokens;
    return this.sums.subarray(layer * size, (layer + 1) * size);
  }

  /**
   * The attention that a token pays to every token in one head, "key".
   * @param {number} layer
   * @param {number} head
   * @param {number} query
   * @param {Float32Array} weights
   * @param {number[]} excluded tokens that get none of it
   */
  row(layer, head, query, weights, excluded = []) {
    const [queries, keys] = this.layer(layer), first = head * this.tokens, sum = this.logSums(layer)[first + query];
    products(queries, first + query, keys, first, this.shape.dim, weights);
    for (let key = 0; key < weights.length; key++) weights[key] = Math.exp(weights[key] - sum);
    if (!excluded.length) return;
    for (const key of excluded) weights[key] = 0;
    const left = weights.reduce((total, weight) => total + weight, 0);
    for (let key = 0; key < weights.length; key++) weights[key] /= left;
  }

  /**
   * The attention of some tokens together in one head, their mean: "key" of what they attend to, or "query" of what attends to them.
   * @param {number} layer
   * @param {number} head
   * @param {number[]} chosen tokens
   * @param {Direction} direction
   * @param {number[]} excluded
   */
  mean(layer, head, chosen, direction, excluded = []) {
    const { tokens } = this, mean = new Float32Array(tokens), weights = new Float32Array(tokens);
    if (direction === "row")
      for (const query of chosen) {
        this.row(layer, head, query, weights, excluded);
        for (let key = 0; key < tokens; key++) mean[key] += weights[key] / chosen.length;
      }
    else
      for (let query = 0; query < tokens; query++) {
        this.row(layer, head, query, weights, excluded);
        for (const key of chosen) mean[query] += weights[key] / chosen.length;
      }
    return mean;
  }

  /**
   * The attention of some tokens in one head, or that of all heads fused.
   * @param {number} layer
   * @param {Head} head
   * @param {number[]} chosen
   * @param {Direction} direction
   * @param {number[]} excluded
   */
  map(layer, head, chosen, direction, excluded = []) {
    if (typeof head === "number") return this.mean(layer, head, chosen, direction, excluded);
    const fused = new Float32Array(this.tokens).fill(head === "min" ? Infinity : 0);
    for (let each = 0; each < this.shape.heads; each++)
      fuse(head, fused, this.mean(layer, each, chosen, direction, excluded), this.shape.heads);
    return fused;
  }

  /**
   * The heads of a layer as one matrix, "query key".
   * @param {number} layer
   * @param {Fusion} fusion
   * @param {number[]} excluded
   */
  fused(layer, fusion, excluded = []) {
    const kind = JSON.stringify([fusion, excluded]), key = `${layer} ${kind}`, known = this.fusedMatrices.get(key);
    if (known) return known;
    const { tokens, shape: { heads, layers } } = this, matrix = new Float32Array(tokens * tokens), weights = new Float32Array(tokens);
    for (let query = 0; query < tokens; query++) {
      const row = matrix.subarray(query * tokens, (query + 1) * tokens);
      if (fusion === "min") row.fill(Infinity);
      for (let head = 0; head < heads; head++) {
        this.row(layer, head, query, weights, excluded);
        fuse(fusion, row, weights, heads);
      }
    }
    if (kind !== this.fusedKind) this.fusedMatrices.clear();
    this.fusedKind = kind;
    if (layers * matrix.byteLength <= MAX_FUSED_BYTES) this.fusedMatrices.set(key, matrix);
    return matrix;
  }

  /**
   * The attention that each token receives, in the mean of the query tokens from one on: "layer head key".
   * @param {number} firstQuery
   */
  received(firstQuery = 0) {
    const { tokens, shape: { layers, heads } } = this, received = new Float64Array(layers * heads * tokens);
    const weights = new Float32Array(tokens);
    for (let row = 0; row < layers * heads; row++)
      for (let query = firstQuery; query < tokens; query++) {
        this.row(Math.floor(row / heads), row % heads, query, weights);
        for (let key = 0; key < tokens; key++) received[row * tokens + key] += weights[key] / (tokens - firstQuery);
      }
    return received;
  }
}
