// The functions of kernels.c in plain JavaScript, on the same memory, for browsers that refuse WebAssembly. Sums are in
// double precision, which is what JavaScript has.

/**
 * The abscissa and the parts of a number's GELU, as in kernels.c.
 * @param {number} x
 */
function geluOf(x) {
  const z = Math.abs(x) * Math.SQRT1_2, t = 1 / (1 + 0.3275911 * z);
  const p = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t;
  const tail = 0.5 * p * Math.exp(-z * z);
  return x * (x < 0 ? tail : 1 - tail);
}

/** @param {number} x */
const sigmoidOf = (x) => 1 / (1 + Math.exp(-x));

/** The activations in the order of ACTIVATIONS in encoder.js. */
const PLAIN_ACTIVATIONS = [
  geluOf,
  (/** @type {number} */ x) => x * sigmoidOf(1.5957691216057308 * (x + 0.044715 * x ** 3)),
  (/** @type {number} */ x) => x * sigmoidOf(1.702 * x),
  (/** @type {number} */ x) => x * sigmoidOf(x),
  (/** @type {number} */ x) => Math.max(x, 0),
];

/**
 * The kernels on a memory.
 * @param {ArrayBuffer} buffer
 * @returns {KernelFunctions}
 */
export function plainKernels(buffer) {
  const floats = new Float32Array(buffer), halves = new Uint16Array(buffer);
  const bits = new Uint32Array(1), number = new Float32Array(bits.buffer);
  // A panel, "input 8", and two rows side by side.
  let panel = new Float64Array(0), pair = new Float64Array(0);
  /** @param {number} depth */
  const reserve = (depth) => { if (pair.length < 2 * depth) panel = new Float64Array(8 * depth), pair = new Float64Array(2 * depth); };

  /**
   * As `panel_product` in kernels.c, of two rows and four outputs at a time; places are in values.
   * @param {number} x
   * @param {number} xStride
   * @param {number} rows
   * @param {number} depth
   * @param {number} bias negative for none
   * @param {number} out
   * @param {number} outStride
   * @param {number} columns
   * @param {boolean} accumulate
   */
  function panelProduct(x, xStride, rows, depth, bias, out, outStride, columns, accumulate) {
    const sums = new Float64Array(8), w = panel, t = pair;
    for (let row = 0; row < rows; row += 2) {
      const first = x + row * xStride, second = row + 1 < rows ? first + xStride : first;
      for (let k = 0; k < depth; k++) t[2 * k] = floats[first + k], t[2 * k + 1] = floats[second + k];
      for (let n = 0; n < Math.min(columns, 8); n += 4) {
        let s0 = 0, s1 = 0, s2 = 0, s3 = 0, r0 = 0, r1 = 0, r2 = 0, r3 = 0;
        for (let k = 0, i = n; k < depth; k++, i += 8) {
          const a = t[2 * k], b = t[2 * k + 1], w0 = w[i], w1 = w[i + 1], w2 = w[i + 2], w3 = w[i + 3];
          s0 += a * w0, s1 += a * w1, s2 += a * w2, s3 += a * w3;
          r0 += b * w0, r1 += b * w1, r2 += b * w2, r3 += b * w3;
        }
        sums[0] = s0, sums[1] = s1, sums[2] = s2, sums[3] = s3, sums[4] = r0, sums[5] = r1, sums[6] = r2, sums[7] = r3;
        for (let line = 0; line < 2 && row + line < rows; line++)
          for (let i = 0, o = out + (row + line) * outStride + n; i < 4 && n + i < columns; i++, o++) {
            const value = sums[4 * line + i] + (bias < 0 ? 0 : floats[bias + n + i]);
            floats[o] = accumulate ? floats[o] + value : value;
          }
      }
    }
  }

  return {
    linear(x, weights, isBfloat16, bias, out, outStride, rows, depth, width, accumulate) {
      reserve(depth);
      for (let n = 0; n < width; n += 8) {
        const start = weights / (isBfloat16 ? 2 : 4) + n * depth;
        if (isBfloat16) for (let i = 0; i < depth * 8; i++) bits[0] = halves[start + i] << 16, panel[i] = number[0];
        else for (let i = 0; i < depth * 8; i++) panel[i] = floats[start + i];
        panelProduct(x / 4, depth, rows, depth, bias ? bias / 4 + n : -1, out / 4 + n, outStride, width - n, Boolean(accumulate));
      }
    },

    layer_norm(x, weight, bias, out, rows, width, epsilon) {
      x /= 4, weight /= 4, bias /= 4, out /= 4;
      for (let row = 0; row < rows; row++, x += width, out += width) {
        let total = 0, squares = 0;
        for (let i = 0; i < width; i++) total += floats[x + i];
        const mean = total / width;
        for (let i = 0; i < width; i++) squares += (floats[x + i] - mean) ** 2;
        const scale = 1 / Math.sqrt(squares / width + epsilon);
        for (let i = 0; i < width; i++) floats[out + i] = (floats[x + i] - mean) * scale * floats[weight + i] + floats[bias + i];
      }
    },

    activate(x, count, kind) {
      const activation = PLAIN_ACTIVATIONS[kind];
      for (let i = x / 4, end = i + count; i < end; i++) floats[i] = activation(floats[i]);
    },

    multiply(x, factors, count) {
      x /= 4, factors /= 4;
      for (let i = 0; i < count; i++) floats[x + i] *= floats[factors + i];
    },

    rotate(x, cosines, sines, rows, dim) {
      x /= 4, cosines /= 4, sines /= 4;
      const half = dim / 2;
      for (let row = 0; row < rows; row++, x += dim, cosines += half, sines += half)
        for (let i = 0; i < half; i++) {
          const first = floats[x + i], second = floats[x + i + half], cosine = floats[cosines + i], sine = floats[sines + i];
          floats[x + i] = first * cosine - second * sine, floats[x + i + half] = second * cosine + first * sine;
        }
    },

    attend(q, k, v, out, outStride, sums, scores, queries, keys, dim, scale, factor) {
      q /= 4, k /= 4, v /= 4, out /= 4, sums /= 4, scores /= 4;
      const stride = (keys + 7) & ~7, block = 256;
      reserve(Math.max(keys, dim));
      for (let first = 0; first < queries; first += block) {
        const rows = Math.min(queries - first, block);
        for (let n = 0; n < keys; n += 8) {
          for (let i = 0; i < 8; i++)
            for (let d = 0; d < dim; d++) panel[d * 8 + i] = n + i < keys ? floats[k + (n + i) * dim + d] * scale : 0;
          panelProduct(q + first * dim, dim, rows, dim, -1, scores + n, stride, 8, false);
        }
        for (let s = scores, row = 0; row < rows; row++, s += stride) {
          let most = floats[s], total = 0;
          for (let i = 1; i < keys; i++) most = Math.max(most, floats[s + i]);
          for (let i = 0; i < keys; i++) total += floats[s + i] = Math.exp(floats[s + i] - most);
          for (let i = 0; i < keys; i++) floats[s + i] *= factor / total;
          floats[sums + 2 * (first + row)] = most, floats[sums + 2 * (first + row) + 1] = total;
        }
        for (let d = 0; d < dim; d += 8) {
          for (let t = 0; t < keys; t++)
            for (let i = 0; i < 8; i++) panel[t * 8 + i] = d + i < dim ? floats[v + t * dim + d + i] : 0;
          panelProduct(scores, stride, rows, keys, -1, out + first * outStride + d, outStride, dim - d, false);
        }
      }
    },
  };
}
