// From the tokens of the last layer to logits, as `read` in vitviz/models/vit.py and vitviz/models/pooling.py, and what
// else a pass leaves in memory.

/**
 * The mean of the tokens from `first` on.
 * @param {Float32Array} tokens "token width"
 * @param {number} width
 * @param {number} first
 */
function meanToken(tokens, width, first) {
  const count = tokens.length / width - first, mean = new Float64Array(width);
  for (let i = first * width; i < tokens.length; i++) mean[i % width] += tokens[i];
  return mean.map((total) => total / count);
}

/**
 * The pooled tokens, for every pooling but that by attention, which has weights of its own.
 * @param {NetworkConfig["pooling"]} pooling
 * @param {Float32Array} tokens "token width"
 * @param {number} width
 * @param {string[]} prefix names of the tokens before the patches
 * @returns {ArrayLike<number>}
 */
function poolTokens(pooling, tokens, width, prefix) {
  const token = (/** @type {string} */ name) => tokens.subarray(prefix.indexOf(name) * width, (prefix.indexOf(name) + 1) * width);
  switch (pooling) {
    case "cls": return token("cls");
    case "mean": return meanToken(tokens, width, prefix.length);
    case "mean of all": return meanToken(tokens, width, 0);
    case "cls and mean": return [...token("cls"), ...meanToken(tokens, width, prefix.length)];
    case "cls and distillation": return [...token("cls"), ...token("distillation")];
    default: throw Error(`pooling ${pooling}`);
  }
}

/**
 * How many of the last layer's first tokens the logits depend on.
 * @param {NetworkConfig["pooling"]} pooling
 * @param {string[]} prefix
 * @param {number} tokens
 */
export function tokensRead(pooling, prefix, tokens) {
  if (pooling === "cls") return prefix.indexOf("cls") + 1;
  return pooling === "cls and distillation" ? Math.max(prefix.indexOf("cls"), prefix.indexOf("distillation")) + 1 : tokens;
}

/**
 * Pools patches "patch width" by the attention of one learned query, as AttentionPooling in vitviz/models/layers.py; its weights
 * "head token", 0 for the prefix.
 * @param {Network} network
 * @param {number} source pointer of the patches
 * @param {number} patches how many remain
 */
function poolByAttention(network, source, patches) {
  const { kernels, at, prefix, config: { width, heads } } = network, dim = width / heads;
  const weights = new Float32Array(heads * (prefix + patches));
  for (let head = 0; head < heads; head++) {
    const offset = head * patches * dim * 4, query = network.pointer("pooler.query") + head * dim * 4;
    network.linear("pooler.keys", source, at.poolerKeys + offset, patches, width, dim, { head });
    network.linear("pooler.values", source, at.poolerValues + offset, patches, width, dim, { head });
    kernels.run.attend(query, at.poolerKeys + offset, at.poolerValues + offset, at.context + head * dim * 4, width, at.attended, at.scores,
      1, patches, dim, dim ** -0.5, 1);
    weights.set(kernels.floats(at.scores, patches), head * (prefix + patches) + prefix);
  }
  network.linear("pooler.projection", at.context, at.attended, 1, width, width);
  kernels.floats(at.pooled, width).set(kernels.floats(at.attended, width));
  network.norm("pooler.mlp_norm", at.attended, at.pooledNormed, 1, width);
  network.mlp("pooler.mlp", at.pooledNormed, at.pooled, 1);
  return weights;
}

/**
 * The features that the classifier reads, the logits, and the weights of an attention pooling. What is computed on the way stays
 * in memory.
 * @param {Network} network
 * @param {number} tokens how many of the stream's first tokens are computed
 */
export function classify(network, tokens) {
  const { kernels, at, prefix, config, file } = network, { width, pooling, final_norm: finalNorm } = config;
  if (finalNorm === "before pooling") network.norm("norm", at.stream, at.normed, tokens, width);
  const source = finalNorm === "before pooling" ? at.normed : at.stream;
  let pooledWeights = null, count = width, features = at.pooled;
  if (pooling === "attention") pooledWeights = poolByAttention(network, source + prefix * width * 4, tokens - prefix);
  else {
    const pooled = poolTokens(pooling, kernels.floats(source, tokens * width), width, file.input.prefix);
    count = pooled.length;
    kernels.floats(at.pooled, count).set(pooled);
  }
  if (finalNorm === "after pooling") {
    network.norm("norm", at.pooled, at.pooledNormed, 1, count);
    features = at.pooledNormed;
  }
  if (config.representation_width) {
    network.linear("representation", features, at.represented, 1, count, config.representation_width);
    features = at.represented, count = config.representation_width;
    kernels.floats(features, count).forEach((value, i, all) => { all[i] = Math.tanh(value); });
  }
  if (config.projection_width) {
    network.linear("projection", features, at.projected, 1, count, config.projection_width);
    features = at.projected, count = config.projection_width;
  }
  const read = kernels.floats(features, count).slice();
  if (config.classes) network.linear("classifier", features, at.logits, 1, count, config.classes);
  return { features: read, logits: config.classes ? kernels.floats(at.logits, config.classes).slice() : read, pooled: pooledWeights };
}

/**
 * What a pass left in memory.
 * @param {Network} network
 * @param {number} tokens
 * @param {number} read how many of the last layer's tokens are computed
 * @param {boolean} logitsOnly
 * @param {boolean} isTraced whether its attention is wanted
 * @returns {Encoding}
 */
export function readEncoding(network, tokens, read, logitsOnly, isTraced) {
  const { kernels, at, config: { depth, heads, head_width: dim, width } } = network, result = classify(network, read);
  if (!result.logits.every(Number.isFinite)) throw Error("The network's numbers leave the range of 32 bits for this picture");
  const copy = (/** @type {string} */ name, /** @type {number} */ count) => kernels.floats(at[name], isTraced ? count : 0).slice();
  const sums = copy("sums", depth * heads * tokens * 2), logSums = new Float32Array(sums.length / 2);
  for (let i = 0; i < logSums.length; i++) logSums[i] = sums[2 * i] + Math.log(sums[2 * i + 1]);
  const [queries, keys] = ["queries", "keys"].map((name) => copy(name, depth * heads * tokens * dim));
  const stream = kernels.floats(at.stream, logitsOnly ? 0 : tokens * width).slice();
  return { ...result, queries, keys, logSums, tokens: stream, norms: copy("norms", (depth + 1) * tokens) };
}
