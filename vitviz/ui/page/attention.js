// Attention weights from queries, keys and the logarithms of the rows' sums; other maps have files of their own.

import { sum } from "./numbers.js";
import { fromBase64, readPack } from "./packs.js";

/** @type {Record<Fusion, (fused: number, weight: number, heads: number) => number>} */
export const FUSIONS = {
  mean: (fused, weight, heads) => fused + weight / heads,
  max: (fused, weight) => Math.max(fused, weight),
  min: (fused, weight) => Math.min(fused, weight),
};

/**
 * Add the weights of one of several heads to what is fused of those before.
 * @param {Fusion} fusion
 * @param {Float32Array} fused
 * @param {Float32Array} weights
 * @param {number} heads
 */
export function fuse(fusion, fused, weights, heads) {
  const add = FUSIONS[fusion];
  for (let token = 0; token < fused.length; token++) fused[token] = add(fused[token], weights[token], heads);
}

/**
 * The dot products of one vector with others, both "vector dim": `results` "vector".
 * @param {any} vectors
 * @param {any} vectorIndex
 * @param {any} others
 * @param {any} firstOther
 * @param {any} dim
 * @param {any} results
 */
export function products(vectors, vectorIndex, others, firstOther, dim, results) {
  const vector = vectors.subarray(vectorIndex * dim, (vectorIndex + 1) * dim), unrolled = dim - dim % 4;
  for (let output = 0, offset = firstOther * dim; output < results.length; output++, offset += dim) {
    // Four independent sums: each addition to a single one would wait for the last.
    let a = 0, b = 0, c = 0, d = 0;
    for (let index = 0; index < unrolled; index += 4) {
      a += vector[index] * others[offset + index];
      b += vector[index + 1] * others[offset + index + 1];
      c += vector[index + 2] * others[offset + index + 2];
      d += vector[index + 3] * others[offset + index + 3];
    }
    for (let index = unrolled; index < dim; index++) a += vector[index] * others[offset + index];
    results[output] = a + b + c + d;
  }
}

/** Maps of one analysis: its `facts` (see facts.py) and `packs`, its files. */
export class Attention {
  /**
   * @param {Facts} facts
   * @param {Packs} packs
   */
  constructor(facts, packs) {
    this.facts = facts;
    this.packs = packs;
    this.prefix = facts.prefix.length;
    this.tokens = this.prefix + facts.rows * facts.columns;
    this.headWeights = new Float32Array(this.tokens);
    // Of the square with which the page opens, "layer head token", times the number of tokens.
    this.opening = facts.look?.rows ? readPack(fromBase64(facts.look.rows).buffer).rows : null;
  }

  /**
   * Attention from the token (row) or to it (column): "token"; null until the layer's file is loaded, but for the square with which
   * the page opens.
   * @param {number} layer
   * @param {Head} head
   * @param {number} token
   * @param {Direction} direction
   */
  map(layer, head, token, direction) {
    const pack = this.packs.get(`layer ${layer}`) ?? this.openingLayer(layer, token, direction);
    if (!pack) return null;
    const weights = new Float32Array(this.tokens);
    if (typeof head === "number") this.weights(pack, head, token, direction, weights);
    else this.fused(pack, head, token, direction, weights);
    return weights;
  }

  /**
   * The weights of the square with which the page opens, "head token", in place of a layer that is not loaded.
   * @param {number} layer
   * @param {number} token
   * @param {Direction} direction
   */
  openingLayer(layer, token, direction) {
    const { look, heads } = this.facts, size = heads * this.tokens;
    if (!look || !this.opening || direction !== "row" || token !== this.token(...look.query)) return null;
    return { rows: this.opening.subarray(layer * size, (layer + 1) * size).map((/** @type {number} */ value) => value / this.tokens) };
  }

  /**
   * The token's rollout through all layers: "token". The file has it times the number of tokens.
   * @param {number} token
   */
  rollout(token) {
    const rows = this.packs.get("rollout")?.rows;
    return rows ? rows.subarray(token * this.tokens, (token + 1) * this.tokens).map((value) => value / this.tokens) : null;
  }

  /**
   * @param {any} pack
   * @param {Fusion} fusion
   * @param {number} token
   * @param {Direction} direction
   * @param {Float32Array} weights
   */
  fused(pack, fusion, token, direction, weights) {
    if (fusion === "min") weights.fill(Infinity);
    for (let head = 0; head < this.facts.heads; head++) {
      this.weights(pack, head, token, direction, this.headWeights);
      fuse(fusion, weights, this.headWeights, this.facts.heads);
    }
  }

  /**
   * One head's weights: "token".
   * @param {any} pack
   * @param {number} head
   * @param {number} token
   * @param {Direction} direction
   * @param {Float32Array} weights
   */
  weights(pack, head, token, direction, weights) {
    const { log_sums: sums, rows } = pack, first = head * this.tokens, isRow = direction === "row";
    if (rows) return weights.set(rows.subarray(first, first + this.tokens));
    this.scores(pack, head, token, direction, weights);
    for (let index = 0; index < this.tokens; index++) weights[index] = Math.exp(weights[index] - sums[first + (isRow ? token : index)]);
  }

  /**
   * One head's scores before the softmax, minus the score of the mean key: "token".
   * @param {any} options the layer's file
   * @param {number} head
   * @param {number} token
   * @param {Direction} direction
   * @param {Float32Array} scores
   */
  scores({ queries, keys, bias }, head, token, direction, scores) {
    const first = head * this.tokens, isRow = direction === "row";
    products(isRow ? queries : keys, first + token, isRow ? keys : queries, first, queries.shape[2], scores);
    if (bias) this.addBias(bias, first, token, isRow, scores);
  }

  /**
   * Add one row or column of `bias` "head query key" to scores "token".
   * @param {any} bias
   * @param {any} first
   * @param {number} token
   * @param {any} isRow
   * @param {Float32Array} scores
   */
  addBias(bias, first, token, isRow, scores) {
    for (let index = 0; index < this.tokens; index++) {
      const [query, key] = isRow ? [token, index] : [index, token];
      scores[index] += bias[(first + query) * this.tokens + key];
    }
  }

  /** @param {Float32Array} values */
  strongest(values) {
    let strongest = this.prefix, highest = -Infinity;
    for (let token = strongest; token < this.tokens; token++) if (values[token] > highest) [strongest, highest] = [token, values[token]];
    return strongest;
  }

  /**
   * The entropy of a row of weights in nats, from 0 to the logarithm of the number of tokens.
   * @param {Float32Array} values
   */
  entropy(values) {
    return -sum(values.map((value) => (value > 0 ? value * Math.log(value) : 0)));
  }

  /**
   * The mean distance from a patch to those that it attends to, in patches; null for a prefix token.
   * @param {Float32Array} values
   * @param {number} token
   */
  distance(values, token) {
    if (token < this.prefix) return null;
    const [row, column] = this.cell(token), { columns } = this.facts, patches = values.subarray(this.prefix);
    const farness = patches.map((value, patch) => value * Math.hypot(Math.floor(patch / columns) - row, patch % columns - column));
    return sum(patches) > 0 ? sum(farness) / sum(patches) : null;
  }

  /**
   * Row and column of a patch.
   * @param {number} token
   * @returns {Cell}
   */
  cell(token) {
    const patch = token - this.prefix;
    return [Math.floor(patch / this.facts.columns), patch % this.facts.columns];
  }

  /**
   * @param {number} row
   * @param {number} column
   */
  token(row, column) {
    return this.prefix + row * this.facts.columns + column;
  }
}
