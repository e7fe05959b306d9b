// vitviz's Vision Transformer over the kernels: the layers of vitviz/models/vit.py, one picture at a time. Alone, or as
// one of several ranks that share out the tokens and send each other keys and values.

import { copyPatch } from "./device_file.js";
import { readEncoding, tokensRead } from "./reading.js";

/** The activations by their numbers in kernels.c. */
export const ACTIVATIONS = ["gelu", "gelu tanh", "quick gelu", "silu", "relu"];
/** Queries whose scores `attend` has in memory at a time, as in kernels.c. */
export const QUERIES_AT_A_TIME = 256;
/** Values that a kernel may read or write behind those it was asked for. */
export const MARGIN = 8;

/**
 * A network that runs without others.
 * @type {Rank}
 */
export const ALONE = { rank: 0, ranks: 1, share: async () => {}, gather: async () => {}, onLayer: async () => {} };

/**
 * The next multiple of eight.
 * @param {number} count
 */
export const padded = (count) => (count + 7) & ~7;

/** A network whose weights are in the memory of the kernels. */
export class Network {
  /**
   * @param {DeviceFile} file
   * @param {Kernels} kernels
   */
  constructor(file, kernels) {
    const { config, input } = file, { width, depth, heads, head_width: dim } = config;
    this.kernels = kernels;
    // The weights themselves are copied into the memory of the kernels.
    this.file = { ...file, data: new Uint8Array(0) };
    this.config = config;
    this.prefix = input.prefix.length;
    this.patches = input.rows * input.columns;
    this.inner = heads * dim;
    this.patchPixels = config.channels * config.patch_height * config.patch_width;
    const tokens = this.prefix + this.patches, headed = tokens * this.inner;
    const byAttention = config.pooling === "attention";
    const features = Math.max(2 * width, config.representation_width, config.projection_width);
    /** The number of values of each buffer. @type {Record<string, number>} */
    const counts = {
      stream: tokens * width, normed: tokens * width, hidden: tokens * Math.max(config.mlp_width, this.patchPixels),
      gate: "layers.0.mlp.gate.weight" in file.tensors ? tokens * config.mlp_width : 0,
      values: headed, context: Math.max(headed, width), scores: Math.min(tokens, QUERIES_AT_A_TIME) * padded(tokens),
      queries: depth * headed, keys: depth * headed, sums: depth * heads * tokens * 2, norms: (depth + 1) * tokens,
      cosines: this.patches * dim / 2, sines: this.patches * dim / 2,
      poolerKeys: byAttention ? this.patches * width : 0, poolerValues: byAttention ? this.patches * width : 0, attended: width,
      pooled: features, pooledNormed: features, represented: features, projected: features, logits: config.classes,
    };
    const bytes = (/** @type {number} */ count) => (count + MARGIN) * 4 + 16;
    kernels.reserve(file.data.length + 16 + Object.values(counts).reduce((total, count) => total + bytes(count), 0));
    this.weights = kernels.take(file.data.length);
    new Uint8Array(kernels.buffer).set(file.data, this.weights);
    /** Pointers of the buffers. @type {Record<string, number>} */
    this.at = Object.fromEntries(Object.entries(counts).map(([name, count]) => [name, kernels.take((count + MARGIN) * 4)]));
    this.weightBytes = file.data.length;
    /** Where its memory ends. */
    this.end = kernels.top;
    /** What reads the numbers of a pass, also where other kernels compute them. @type {Network} */
    this.reader = this;
  }

  /**
   * The pointer of a tensor; 0 if the network has none of this name.
   * @param {string} name
   */
  pointer(name) {
    const tensor = this.file.tensors[name];
    return tensor ? this.weights + tensor.offset : 0;
  }

  /**
   * A linear map of rows, or the part of one that makes a head.
   * @param {string} name
   * @param {number} x
   * @param {number} out
   * @param {number} rows
   * @param {number} depth
   * @param {number} width
   * @param {{ accumulate?: boolean, head?: number, outStride?: number }} options
   */
  linear(name, x, out, rows, depth, width, { accumulate = false, head = 0, outStride = width } = {}) {
    const { dtype } = this.file.tensors[`${name}.weight`], isNarrow = dtype === "BF16", bias = this.pointer(`${name}.bias`);
    const weights = this.pointer(`${name}.weight`) + head * padded(width) * depth * (isNarrow ? 2 : 4);
    this.kernels.run.linear(x, weights, Number(isNarrow), bias && bias + head * padded(width) * 4, out, outStride, rows, depth, width,
      Number(accumulate));
  }

  /**
   * @param {string} name
   * @param {number} x
   * @param {number} out
   * @param {number} rows
   * @param {number} width
   */
  norm(name, x, out, rows, width) {
    const { config: { norm_epsilon: epsilon }, kernels } = this;
    kernels.run.layer_norm(x, this.pointer(`${name}.weight`), this.pointer(`${name}.bias`), out, rows, width, epsilon);
  }

  /**
   * Adds the MLP of normalised rows to the stream.
   * @param {string} name
   * @param {number} x
   * @param {number} stream
   * @param {number} rows
   */
  mlp(name, x, stream, rows) {
    const { width, mlp_width: hidden, activation } = this.config, { run } = this.kernels, kind = ACTIVATIONS.indexOf(activation);
    const isGated = Boolean(this.pointer(`${name}.gate.weight`)), activated = isGated ? this.at.gate : this.at.hidden;
    this.linear(`${name}.hidden`, x, this.at.hidden, rows, width, hidden);
    if (isGated) this.linear(`${name}.gate`, x, activated, rows, width, hidden);
    run.activate(activated, 0, rows * hidden, kind);
    if (isGated) run.multiply(this.at.hidden, activated, rows * hidden);
    this.linear(`${name}.output`, this.at.hidden, stream, rows, hidden, width, { accumulate: true });
  }

  /**
   * The tokens that a pass computes: all, or all but the hidden patches.
   * @param {number[]} hiddenPatches
   */
  remaining(hiddenPatches) {
    const hidden = new Set(hiddenPatches);
    for (const patch of hidden)
      if (!(Number.isInteger(patch) && patch >= 0 && patch < this.patches)) throw Error(`patch ${patch}: there are ${this.patches}`);
    if (hidden.size === this.patches) throw Error(`All ${this.patches} patches are hidden: expected at least one that is not`);
    return [...Array(this.prefix + this.patches).keys()].filter((token) => !hidden.has(token - this.prefix));
  }

  /**
   * The tokens [first, last) of those that remain, before their norm.
   * @param {Float32Array} pixels
   * @param {number[]} remaining
   * @param {number} first
   * @param {number} last
   */
  embed(pixels, remaining, first, last) {
    const { kernels, at, prefix, patchPixels, config: { width } } = this;
    const stream = kernels.floats(at.stream, last * width), from = Math.min(Math.max(first, prefix), last), rows = last - from;
    const prefixTokens = kernels.floats(this.pointer("prefix_tokens"), prefix * width);
    for (let row = first; row < from; row++) stream.set(prefixTokens.subarray(row * width, (row + 1) * width), row * width);
    kernels.written(at.stream + first * width * 4, (from - first) * width);
    const patches = kernels.floats(at.hidden, rows * patchPixels);
    for (let row = 0; row < rows; row++)
      copyPatch(pixels, this.config, this.file.input, remaining[from + row] - prefix, patches.subarray(row * patchPixels));
    kernels.written(at.hidden, rows * patchPixels);
    const embedded = at.stream + from * width * 4;
    if (this.pointer("patch_norms.0.weight")) this.norm("patch_norms.0", at.hidden, at.hidden, rows, patchPixels);
    this.linear("patch_embedding", at.hidden, embedded, rows, patchPixels, width);
    if (this.pointer("patch_norms.1.weight")) this.norm("patch_norms.1", embedded, embedded, rows, width);
    const positions = this.pointer("positions") && kernels.floats(this.pointer("positions"), this.patches * width);
    if (!positions) return;
    const laid = kernels.floats(at.normed, rows * width);
    for (let row = 0; row < rows; row++) {
      const patch = remaining[from + row] - prefix;
      laid.set(positions.subarray(patch * width, (patch + 1) * width), row * width);
    }
    kernels.written(at.normed, rows * width);
    kernels.add(embedded, at.normed, rows * width);
  }

  /**
   * The norm before the first layer, of networks that have one.
   * @param {number} first
   * @param {number} last
   */
  normTokens(first, last) {
    const { width } = this.config, start = this.at.stream + first * width * 4;
    if (this.pointer("pre_norm.weight")) this.norm("pre_norm", start, start, last - first, width);
  }

  /**
   * Lays the rotary positions of the remaining patches side by side.
   * @param {number[]} remaining
   */
  layRotations(remaining) {
    const half = this.config.head_width / 2, { kernels, prefix } = this;
    for (const name of ["cosines", "sines"]) {
      const count = this.patches * half, table = kernels.floats(this.pointer(`rotary.${name}`), count);
      const laid = kernels.floats(this.at[name], count);
      remaining.slice(prefix).forEach((token, row) =>
        laid.set(table.subarray((token - prefix) * half, (token - prefix + 1) * half), row * half));
      kernels.written(this.at[name], count);
    }
  }

  /**
   * Queries, keys and values of the normalised rows [first, last), each "head token dim".
   * @param {number} layer
   * @param {number} tokens
   * @param {number} first
   * @param {number} last
   * @param {number[]} outs
   */
  project(layer, tokens, first, last, outs) {
    const { config: { width, heads, head_width: dim }, at, prefix, kernels } = this;
    const from = Math.max(first, prefix), name = `layers.${layer}.attention`;
    for (const [part, kind] of ["queries", "keys", "values"].entries())
      kernels.each(heads, (head) => {
        const rowAt = (/** @type {number} */ row) => outs[part] + (head * tokens + row) * dim * 4;
        this.linear(`${name}.${kind}`, at.normed + first * width * 4, rowAt(first), last - first, width, dim, { head });
        if (kind === "values") return;
        if (this.pointer(`${name}.${kind}_norm.weight`)) this.norm(`${name}.${kind}_norm`, rowAt(first), rowAt(first), last - first, dim);
        const angle = (from - prefix) * dim / 2 * 4;
        if (this.pointer("rotary.sines") && from < last)
          kernels.run.rotate(rowAt(from), at.cosines + angle, at.sines + angle, last - from, dim);
      });
  }

  /**
   * The lengths of the tokens [first, last) before layer `step`, or after the last one.
   * @param {number} step
   * @param {number} tokens
   * @param {number} first
   * @param {number} last
   */
  measure(step, tokens, first, last) {
    const { at, config: { width } } = this;
    this.kernels.lengths(at.stream + first * width * 4, at.norms + (step * tokens + first) * 4, last - first, width);
  }

  /**
   * The views of what a rank computes in a buffer "group token width".
   * @param {number} pointer
   * @param {number} groups
   * @param {number} width
   * @param {number} tokens
   * @param {[number, number]} range the rank's first token, and the one behind its last
   */
  parts(pointer, groups, width, tokens, [first, last]) {
    return [...Array(groups).keys()].map((group) =>
      this.kernels.floats(pointer + (group * tokens + first) * width * 4, (last - first) * width));
  }

  /**
   * A layer's output for the tokens [first, last) of the stream, of which those from `end` on stay as they were.
   * @param {number} layer
   * @param {number} tokens
   * @param {[number, number]} range
   * @param {number} end
   * @param {object} options
   * @param {Float32Array | null=} options.headFactors
   * @param {((keys: number, values: number) => Promise<void>)=} options.share makes keys and values those of all tokens
   * @param {number=} options.values where they are to be
   * @param {number=} options.middle where the stream between attention and MLP is to be
   */
  async layer(layer, tokens, [first, last], end, { headFactors = null, share, values = this.at.values, middle = 0 } = {}) {
    const { kernels, at, inner, config: { width, heads, head_width: dim }, file: { input } } = this, name = `layers.${layer}`;
    const bytes = tokens * inner * 4, queries = at.queries + layer * bytes, keys = at.keys + layer * bytes;
    const stream = at.stream + first * width * 4, normed = at.normed + first * width * 4, context = at.context + first * inner * 4;
    this.norm(`${name}.attention_norm`, stream, normed, last - first, width);
    this.project(layer, tokens, first, last, [queries, keys, values]);
    await share?.(keys, values);
    const count = Math.max(0, Math.min(last, end) - first);
    kernels.each(heads, (head) => {
      const row = (head * tokens + first) * dim * 4, all = head * tokens * dim * 4, sums = (layer * heads + head) * tokens + first;
      kernels.run.attend(queries + row, keys + all, values + all, context + head * dim * 4, inner, at.sums + sums * 8, at.scores, count,
        tokens, dim, input.scale, headFactors ? headFactors[layer * heads + head] : 1);
    });
    this.linear(`${name}.attention.projection`, context, stream, count, inner, width, { accumulate: true });
    if (middle) kernels.floats(middle, count * width).set(kernels.floats(stream, count * width));
    this.norm(`${name}.mlp_norm`, stream, normed, count, width);
    this.mlp(`${name}.mlp`, normed, stream, count);
  }

  /**
   * One pass of the network.
   *
   * @param {Float32Array} pixels "channel height width", prepared
   * @param {EncodeOptions} options headFactors: "layer head", factors of the heads' attention weights, 0 for a head that is switched
   *   off; hiddenPatches: patches in reading order that no token attends to, and that are not pooled; logitsOnly: only logits and
   *   features are wanted, and all else is empty; layers: how many of them run, where only the tokens after the last one are wanted
   * @param {Rank} team the other ranks, and what is called before every layer
   * @returns {Promise<Encoding | null>} null for all ranks but the first. Of the tokens that are not hidden: queries and keys
   *   "layer head token dim" before their scaling, logSums "layer head token", the logarithms of the sums of exponentials of the scaled
   *   scores, tokens "token width" after the last layer, norms "step token" before the first layer and after each. Features are what
   *   the classifier reads, and the logits of a model without one; pooled is "head token", the attention of an attention pooling.
   */
  async encode(pixels, options = {}, team = ALONE) {
    const { at, config, file: { input } } = this, { width, depth, heads, head_width: dim } = config;
    const { headFactors = null, hiddenPatches = [], logitsOnly = false, layers = depth } = options;
    const expected = this.patches * this.patchPixels;
    if (pixels.length !== expected) throw Error(`${pixels.length} pixels: expected ${expected}`);
    if (headFactors && headFactors.length !== depth * heads) throw Error(`${headFactors.length} factors for ${depth * heads} heads`);
    const remaining = this.remaining(hiddenPatches), tokens = remaining.length, isTraced = !logitsOnly && layers === depth;
    /** @returns {[number, number]} */
    const range = (/** @type {number} */ rank) =>
      [Math.floor((rank * tokens) / team.ranks), Math.floor(((rank + 1) * tokens) / team.ranks)];
    const own = range(team.rank), [first, last] = own;
    const read = logitsOnly ? tokensRead(config.pooling, input.prefix, tokens) : tokens;
    this.embed(pixels, remaining, first, last);
    this.normTokens(first, last);
    if (this.pointer("rotary.sines")) this.layRotations(remaining);
    for (let layer = 0; layer < layers; layer++) {
      await team.onLayer(layer);
      if (isTraced) this.measure(layer, tokens, first, last);
      const share = (/** @type {number[]} */ ...parts) => team.share(layer, (rank) =>
        parts.flatMap((part) => this.parts(part, heads, dim, tokens, range(rank))));
      // The last layer need not compute tokens that nobody reads.
      await this.layer(layer, tokens, own, layer === depth - 1 ? read : tokens, { headFactors, share });
    }
    if (isTraced) this.measure(depth, tokens, first, last);
    await team.gather((rank) => [
      ...this.parts(at.stream, 1, width, tokens, range(rank)),
      ...(isTraced ? [
        ...this.parts(at.queries, depth * heads, dim, tokens, range(rank)), ...this.parts(at.sums, depth * heads, 2, tokens, range(rank)),
        ...this.parts(at.norms, depth + 1, 1, tokens, range(rank)),
      ] : []),
    ]);
    return team.rank ? null : readEncoding(this.reader, tokens, read, logitsOnly, isTraced);
  }
}
