// The backward pass: gradients of a score with respect to attention weights, features and pixels, by the same kernels. What
// a layer computes on the way is computed again, but for its input, its middle and its values, so that memory grows with
// layers times tokens only.

import { copyPatch } from "./device_file.js";
import { ACTIVATIONS, MARGIN, QUERIES_AT_A_TIME, padded } from "./encoder.js";
import { poolBackward, scoreGradient } from "./reading_backward.js";

/** The most memory that the matrices of all layers may take. */
const MAX_PRODUCT_BYTES = 256e6;
/** The kinds of products by their numbers in kernels.c. */
const PRODUCTS = ["signed", "positive", "keys"];

/** The memory of a backward pass, and its steps. */
export class Gradients {
  /** @param {Network} network which needs more memory from now on */
  constructor(network) {
    const { kernels, config, prefix, patches, patchPixels, inner } = network;
    const { width, depth, head_width: dim, mlp_width: hidden, classes, representation_width, projection_width } = config;
    const tokens = prefix + patches, headed = tokens * inner, block = Math.min(tokens, QUERIES_AT_A_TIME) * padded(tokens);
    this.network = network;
    this.tokens = tokens;
    this.productBytes = 4 * depth * tokens ** 2;
    const features = Math.max(2 * width, representation_width, projection_width, classes);
    const pooledHeads = config.pooling === "attention" ? patches * width : 0;
    /** The number of values of each buffer. @type {Record<string, number>} */
    const counts = {
      streams: (depth + 1) * tokens * width, middles: depth * tokens * width, values: depth * headed,
      stream: tokens * width, normed: tokens * Math.max(width, patchPixels), hidden: tokens * hidden, gate: tokens * hidden,
      context: Math.max(headed, width), queries: headed, keys: headed, headValues: headed, before: headed, scratch: 3 * block,
      products: this.productBytes > MAX_PRODUCT_BYTES ? tokens : tokens ** 2,
      totals: tokens, sines: patches * dim / 2, features, otherFeatures: features, attended: width,
      poolerKeys: pooledHeads, poolerValues: pooledHeads,
    };
    kernels.extend(Object.values(counts).reduce((total, count) => total + (count + MARGIN) * 4 + 16, 0));
    /** Pointers of the buffers. @type {Record<string, number>} */
    this.at = Object.fromEntries(Object.entries(counts).map(([name, count]) => [name, kernels.take((count + MARGIN) * 4)]));
  }

  /**
   * @param {string} name
   * @param {number} count
   */
  view(name, count) {
    return this.network.kernels.floats(this.at[name], count);
  }

  /**
   * The gradient of a linear map's input from that of its output.
   * @param {string} name
   * @param {number} gradient
   * @param {number} out
   * @param {number} rows
   * @param {number} depth
   * @param {number} width
   * @param {{ accumulate?: boolean, head?: number }} options
   */
  linear(name, gradient, out, rows, depth, width, { accumulate = false, head = 0 } = {}) {
    const { network } = this, isNarrow = network.file.tensors[`${name}.weight`].dtype === "BF16";
    const weights = network.pointer(`${name}.weight`) + head * padded(width) * depth * (isNarrow ? 2 : 4);
    network.kernels.run.linear_backward(gradient, width, weights, Number(isNarrow), out, rows, depth, width, Number(accumulate));
  }

  /**
   * The gradient of a norm's input x from that of its output; added to `out`, or in its place.
   * @param {string} name
   * @param {number} x
   * @param {number} gradient
   * @param {number} out
   * @param {number} rows
   * @param {number} width
   * @param {boolean} accumulate
   */
  norm(name, x, gradient, out, rows, width, accumulate) {
    const { kernels: { run }, config } = this.network;
    run.layer_norm_backward(x, this.network.pointer(`${name}.weight`), gradient, out, rows, width, config.norm_epsilon, Number(accumulate));
  }

  /**
   * The gradient of an MLP's normalised input x from that of its output.
   * @param {string} name
   * @param {number} x
   * @param {number} gradient
   * @param {number} out
   * @param {number} rows
   */
  mlp(name, x, gradient, out, rows) {
    const { network, at } = this, { kernels: { run }, config: { width, mlp_width: hidden, activation } } = network;
    const kind = ACTIVATIONS.indexOf(activation), count = rows * hidden;
    network.linear(`${name}.hidden`, x, network.at.hidden, rows, width, hidden);
    this.linear(`${name}.output`, gradient, at.hidden, rows, hidden, width);
    if (network.pointer(`${name}.gate.weight`)) {
      network.linear(`${name}.gate`, x, network.at.gate, rows, width, hidden);
      this.view("gate", count).set(this.view("hidden", count));
      run.multiply(at.gate, network.at.hidden, count);
      run.activate(network.at.gate, at.gate, count, kind);
      run.activate(network.at.gate, 0, count, kind);
      run.multiply(at.hidden, network.at.gate, count);
      this.linear(`${name}.gate`, at.gate, out, rows, width, hidden);
      this.linear(`${name}.hidden`, at.hidden, out, rows, width, hidden, { accumulate: true });
    } else {
      run.activate(network.at.hidden, at.hidden, count, kind);
      this.linear(`${name}.hidden`, at.hidden, out, rows, width, hidden);
    }
  }

  /**
   * The forward pass, which keeps what the backward pass needs.
   * @param {Float32Array} pixels
   * @param {number[]} remaining tokens
   * @param {Rank["onLayer"]} onLayer
   */
  async run(pixels, remaining, onLayer) {
    const { network, tokens, at } = this, { kernels, config: { width, depth }, inner } = network, count = tokens * width;
    network.embed(pixels, remaining, 0, tokens);
    network.normTokens(0, tokens);
    if (network.pointer("rotary.sines")) {
      network.layRotations(remaining);
      const angles = network.patches * network.config.head_width / 2, sines = kernels.floats(network.at.sines, angles);
      this.view("sines", angles).set(sines.map((sine) => -sine));
    }
    const keep = (/** @type {number} */ step) =>
      kernels.floats(at.streams + step * count * 4, count).set(kernels.floats(network.at.stream, count));
    keep(0);
    for (let layer = 0; layer < depth; layer++) {
      await onLayer(layer);
      const values = at.values + layer * tokens * inner * 4, middle = at.middles + layer * count * 4;
      await network.layer(layer, tokens, [0, tokens], tokens, { values, middle });
      keep(layer + 1);
    }
  }

  /**
   * From the gradient of a layer's output to that of its stream after attention, and of the context of its heads.
   * @param {number} layer
   */
  toContext(layer) {
    const { network, at, tokens } = this, { config: { width }, inner } = network, name = `layers.${layer}`;
    const middle = at.middles + layer * tokens * width * 4;
    network.norm(`${name}.mlp_norm`, middle, network.at.normed, tokens, width);
    this.mlp(`${name}.mlp`, network.at.normed, at.stream, at.normed, tokens);
    this.norm(`${name}.mlp_norm`, middle, at.normed, at.stream, tokens, width, true);
    this.linear(`${name}.attention.projection`, at.stream, at.context, tokens, inner, width);
  }

  /**
   * From the gradient of the context to that of the layer's input; that of its normalised input stays in memory.
   * @param {number} layer
   * @param {GradientWants["products"]} products
   */
  toInput(layer, products) {
    const { network, at, tokens } = this, { kernels: { run }, config: { width, heads, head_width: dim }, inner, prefix, file } = network;
    const name = `layers.${layer}`, stream = at.streams + layer * tokens * width * 4, bytes = tokens * dim * 4, half = dim / 2;
    network.norm(`${name}.attention_norm`, stream, network.at.normed, tokens, width);
    const tensors = network.at.queries + layer * tokens * inner * 4, keys = network.at.keys + layer * tokens * inner * 4;
    const values = at.values + layer * tokens * inner * 4;
    for (let head = 0; head < heads; head++) {
      const start = head * bytes;
      run.attend_backward(tensors + start, keys + start, values + start, at.context + head * dim * 4, inner, at.queries + start,
        at.keys + start, at.headValues + start, products ? at.products : 0, 1 / heads, PRODUCTS.indexOf(products ?? ""), at.scratch,
        tokens, dim, file.input.scale);
      for (const [kind, gradient] of /** @type {const} */ ([["queries", at.queries], ["keys", at.keys], ["values", at.headValues]])) {
        const own = gradient + start;
        if (kind !== "values" && half && network.pointer("rotary.sines"))
          run.rotate(own + prefix * dim * 4, network.at.cosines, at.sines, tokens - prefix, dim);
        if (kind !== "values" && network.pointer(`${name}.attention.${kind}_norm.weight`)) {
          network.linear(`${name}.attention.${kind}`, network.at.normed, at.before, tokens, width, dim, { head });
          this.norm(`${name}.attention.${kind}_norm`, at.before, own, own, tokens, dim, false);
        }
        const accumulate = head > 0 || kind !== "queries";
        this.linear(`${name}.attention.${kind}`, own, at.normed, tokens, width, dim, { head, accumulate });
      }
    }
    this.norm(`${name}.attention_norm`, stream, at.normed, at.stream, tokens, width, true);
  }

  /** The strength of the features that raise the score, "token", as grad_cam.py has it for a layer's normalised input. */
  gradCam() {
    const { network, tokens, at } = this, { config: { width }, prefix, kernels } = network, strength = new Float32Array(tokens);
    const features = kernels.floats(network.at.normed, tokens * width), gradient = kernels.floats(at.normed, tokens * width);
    const weights = new Float64Array(width);
    for (let i = prefix * width; i < tokens * width; i++) weights[i % width] += gradient[i] / (tokens - prefix);
    for (let token = 0; token < tokens; token++) {
      let total = 0;
      for (let i = 0; i < width; i++) total += features[token * width + i] * weights[i];
      strength[token] = Math.max(0, total);
    }
    return strength;
  }

  /**
   * The gradient of the pixels, "channel height width", from that of the tokens before the first layer.
   * @param {Float32Array} pixels
   */
  toPixels(pixels) {
    const { network, at, tokens } = this, { kernels, config, prefix, patches, patchPixels } = network, { width } = config;
    const { stream, normed } = network.at, from = prefix * width * 4;
    network.embed(pixels, network.remaining([]), 0, tokens);
    if (network.pointer("pre_norm.weight")) this.norm("pre_norm", stream, at.stream, at.stream, tokens, width, false);
    const isNormed = Boolean(network.pointer("patch_norms.0.weight")), unfolded = kernels.floats(network.at.hidden, patches * patchPixels);
    const unfold = () => {
      for (let patch = 0; patch < patches; patch++)
        copyPatch(pixels, config, network.file.input, patch, unfolded.subarray(patch * patchPixels));
    };
    if (isNormed) {
      unfold();
      network.norm("patch_norms.0", network.at.hidden, network.at.hidden, patches, patchPixels);
      network.linear("patch_embedding", network.at.hidden, normed, patches, patchPixels, width);
      this.norm("patch_norms.1", normed, at.stream + from, at.stream + from, patches, width, false);
    }
    this.linear("patch_embedding", at.stream + from, at.normed, patches, patchPixels, width);
    if (isNormed) {
      unfold();
      this.norm("patch_norms.0", network.at.hidden, at.normed, at.normed, patches, patchPixels, false);
    }
    const gradient = kernels.floats(at.normed, patches * patchPixels), folded = new Float32Array(pixels.length);
    for (let patch = 0; patch < patches; patch++)
      copyPatch(folded, config, network.file.input, patch, gradient.subarray(patch * patchPixels), true);
    return folded;
  }

  /**
   * A score and its gradients.
   *
   * @param {Float32Array} pixels "channel height width", prepared
   * @param {ScoreTarget} target
   * @param {GradientWants} wants
   * @param {Rank["onLayer"]} onLayer
   * @returns {Promise<Gradient>} products: "layer query key", the mean over heads of the attention weights times the score's gradient
   *   with respect to them, or of the positive ones; "layer key", that of the gradient with respect to a number that is added to the
   *   scores of each key; pooledProducts: "head token", the first of these of each head of an attention pooling;
   *   gradCam: "layer token"; pixels: "channel height width", the gradient of the pixels; legrad: "layer token", the mean over heads and
   *   queries of the positive gradient of the score that each layer's output has
   */
  async differentiate(pixels, target, wants, onLayer = async () => {}) {
    const { network, at } = this, { kernels, config: { width, depth, heads, head_width: dim }, inner } = network;
    const remaining = network.remaining(wants.hiddenPatches ?? []), tokens = this.tokens = remaining.length;
    const expected = network.patches * network.patchPixels, count = tokens * width, size = wants.products === "keys" ? tokens : tokens ** 2;
    if (pixels.length !== expected) throw Error(`${pixels.length} pixels: expected ${expected}`);
    if (wants.products && size > tokens && this.productBytes > MAX_PRODUCT_BYTES) {
      const [needed, most] = [this.productBytes, MAX_PRODUCT_BYTES].map((bytes) => `${Math.round(bytes / 1e6)} MB`);
      throw Error(`${tokens} tokens: this map takes ${needed} of memory, and may take ${most} in the page`);
    }
    await this.run(pixels, remaining, onLayer);
    const { score, logits, gradient, isOfLogits } = scoreGradient(network, tokens, target);
    const pooledProducts = poolBackward(this, gradient, isOfLogits);
    const each = (/** @type {unknown} */ is, /** @type {number} */ size) => (is ? new Float32Array(depth * size) : null);
    const products = each(wants.products, size), gradCam = each(wants.gradCam, tokens);
    if (products || gradCam || wants.pixels)
      for (let layer = depth - 1; layer >= 0; layer--) {
        await onLayer(layer);
        this.toContext(layer);
        if (products) this.view("products", size).fill(0);
        this.toInput(layer, wants.products);
        products?.set(this.view("products", size), layer * size);
        gradCam?.set(this.gradCam(), layer * tokens);
      }
    const pixelGradient = wants.pixels ? this.toPixels(pixels) : null, legrad = each(wants.legrad, tokens);
    for (let layer = 0; legrad && layer < depth; layer++) {
      await onLayer(layer);
      kernels.floats(network.at.stream, count).set(kernels.floats(at.streams + (layer + 1) * count * 4, count));
      const own = scoreGradient(network, tokens, target);
      poolBackward(this, own.gradient, own.isOfLogits);
      this.toContext(layer);
      this.view("totals", tokens).fill(0);
      for (let head = 0; head < heads; head++)
        kernels.run.positive_products(at.context + head * dim * 4, inner, at.values + (layer * heads + head) * tokens * dim * 4, at.totals,
          1 / (heads * tokens), at.scratch, tokens, dim);
      legrad.set(this.view("totals", tokens), layer * tokens);
    }
    return { score, logits, products, pooledProducts, gradCam, pixels: pixelGradient, legrad };
  }
}
