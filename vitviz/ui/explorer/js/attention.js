// Attention weights from queries, keys and the logarithms of the rows' sums; other maps are files of their own.

const FUSIONS = {
  mean: (into, weights, heads) => { for (let token = 0; token < into.length; token++) into[token] += weights[token] / heads; },
  max: (into, weights) => { for (let token = 0; token < into.length; token++) if (weights[token] > into[token]) into[token] = weights[token]; },
  min: (into, weights) => { for (let token = 0; token < into.length; token++) if (weights[token] < into[token]) into[token] = weights[token]; },
};

/** One vector of `fixed` times many of `moving`, both "vector dim": `into` "vector". */
function products(fixed, number, moving, first, dim, into) {
  const one = fixed.subarray(number * dim, (number + 1) * dim), whole = dim - dim % 4;
  for (let other = 0, place = first * dim; other < into.length; other++, place += dim) {
    // Four sums at a time: a single one would wait for itself at every step.
    let a = 0, b = 0, c = 0, d = 0;
    for (let index = 0; index < whole; index += 4) {
      a += one[index] * moving[place + index];
      b += one[index + 1] * moving[place + index + 1];
      c += one[index + 2] * moving[place + index + 2];
      d += one[index + 3] * moving[place + index + 3];
    }
    for (let index = whole; index < dim; index++) a += one[index] * moving[place + index];
    into[other] = a + b + c + d;
  }
}

/** Maps of one analysis. `facts` is ExplorerData of component.py, `packs` its files. */
class Attention {
  constructor(facts, packs) {
    this.facts = facts;
    this.packs = packs;
    this.prefix = facts.prefix.length;
    this.tokens = this.prefix + facts.rows * facts.columns;
    this.one = new Float32Array(this.tokens);
  }

  /** Attention from the token (row) or to it (column): "token"; null while the layer's file is not there. */
  map(layer, head, token, direction) {
    const pack = this.packs.get(`layer ${layer}`);
    if (!pack) return null;
    const into = new Float32Array(this.tokens);
    if (typeof head === "number") this.weights(pack, head, token, direction, into);
    else this.fused(pack, head, token, direction, into);
    return into;
  }

  /** The token's rollout through all layers: "token". The file has it times the number of tokens. */
  rollout(token) {
    const rows = this.packs.get("rollout")?.rows;
    return rows ? rows.subarray(token * this.tokens, (token + 1) * this.tokens).map((value) => value / this.tokens) : null;
  }

  fused(pack, fusion, token, direction, into) {
    if (fusion === "min") into.fill(Infinity);
    for (let head = 0; head < this.facts.heads; head++) {
      this.weights(pack, head, token, direction, this.one);
      FUSIONS[fusion](into, this.one, this.facts.heads);
    }
  }

  /** One head's weights: `into` "token". */
  weights(pack, head, token, direction, into) {
    this.scores(pack, head, token, direction, into);
    const { log_sums: sums } = pack, first = head * this.tokens, row = direction === "row";
    for (let other = 0; other < this.tokens; other++) into[other] = Math.exp(into[other] - sums[first + (row ? token : other)]);
  }

  /** One head's scores before the softmax, counted from the mean key's: `into` "token". */
  scores({ queries, keys, bias }, head, token, direction, into) {
    const first = head * this.tokens, row = direction === "row";
    products(row ? queries : keys, first + token, row ? keys : queries, first, queries.shape[2], into);
    if (bias) this.addBias(bias, first, token, row, into);
  }

  /** `bias` "head query key", of which one row or column is added to scores "token". */
  addBias(bias, first, token, row, into) {
    for (let other = 0; other < this.tokens; other++) {
      const [query, key] = row ? [token, other] : [other, token];
      into[other] += bias[(first + query) * this.tokens + key];
    }
  }

  /** The lowest and the highest value of the patches. */
  range(values) {
    let low = Infinity, high = -Infinity;
    for (let token = this.prefix; token < this.tokens; token++) {
      if (values[token] < low) low = values[token];
      if (values[token] > high) high = values[token];
    }
    return [low, high];
  }

  strongest(values) {
    let best = this.prefix, highest = -Infinity;
    for (let token = best; token < this.tokens; token++) if (values[token] > highest) [best, highest] = [token, values[token]];
    return best;
  }

  /** Of a row of weights: in nats, from 0 to the logarithm of the number of tokens. */
  entropy(values) {
    let sum = 0;
    for (const value of values) if (value > 0) sum -= value * Math.log(value);
    return sum;
  }

  /** The mean distance from a patch to those it looks at, in patches; null for a prefix token. */
  distance(values, token) {
    if (token < this.prefix) return null;
    const [row, column] = this.cell(token);
    let sum = 0, weight = 0;
    for (let other = this.prefix; other < this.tokens; other++) {
      const [down, across] = this.cell(other);
      sum += values[other] * Math.hypot(down - row, across - column);
      weight += values[other];
    }
    return weight > 0 ? sum / weight : null;
  }

  /** Row and column of a patch. */
  cell(token) {
    const patch = token - this.prefix;
    return [Math.floor(patch / this.facts.columns), patch % this.facts.columns];
  }

  token(row, column) {
    return this.prefix + row * this.facts.columns + column;
  }
}
