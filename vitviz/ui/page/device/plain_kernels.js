// The functions of kernels.c in plain JavaScript, on the same memory, for browsers that refuse WebAssembly. Sums are in
// double precision, which is what JavaScript has.

/**
 * The normal distribution up to x, and its density, as in kernels.c.
 * @param {number} x
 */
function normalOf(x) {
  const z = Math.abs(x) * Math.SQRT1_2, t = 1 / (1 + 0.3275911 * z), e = Math.exp(-z * z);
  const p = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t;
  const tail = 0.5 * p * e;
  return { share: x < 0 ? tail : 1 - tail, change: 0.3989422804014327 * e };
}

/** Queries whose scores are in memory at a time. */
const QUERIES = 256;
/** The factors of the sigmoids of "gelu tanh", "quick gelu" and "silu". */
const SIGMOID_FACTORS = [0, 1.5957691216057308, 1.702, 1];

/**
 * An activation, by its place in ACTIVATIONS of encoder.js, and its slope.
 * @param {number} x
 * @param {number} kind
 */
function activationOf(x, kind) {
  if (kind === 4) return { value: Math.max(x, 0), slope: x > 0 ? 1 : 0 };
  if (kind === 0) {
    const { share, change } = normalOf(x);
    return { value: x * share, slope: share + x * change };
  }
  const factor = SIGMOID_FACTORS[kind], cubic = kind === 1 ? 0.044715 * x * x : 0;
  const share = 1 / (1 + Math.exp(-factor * (x + cubic * x)));
  return { value: x * share, slope: share + x * share * (1 - share) * factor * (1 + 3 * cubic) };
}

/**
 * The kernels on a memory.
 * @param {ArrayBuffer} buffer
 * @returns {KernelFunctions}
 */
export function plainKernels(buffer) {
  const floats = new Float32Array(buffer), halves = new Uint16Array(buffer);
  const bits = new Uint32Array(1), number = new Float32Array(bits.buffer);

  /**
   * As `panel_product` in kernels.c; places are in values.
   * @param {Float64Array} w "input 8"
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
  function panelProduct(w, x, xStride, rows, depth, bias, out, outStride, columns, accumulate) {
    for (let row = 0; row < rows; row++, x += xStride, out += outStride) {
      let s0 = 0, s1 = 0, s2 = 0, s3 = 0, s4 = 0, s5 = 0, s6 = 0, s7 = 0;
      for (let k = 0, i = 0; k < depth; k++, i += 8) {
        const a = floats[x + k];
        s0 += a * w[i], s1 += a * w[i + 1], s2 += a * w[i + 2], s3 += a * w[i + 3];
        s4 += a * w[i + 4], s5 += a * w[i + 5], s6 += a * w[i + 6], s7 += a * w[i + 7];
      }
      const sums = [s0, s1, s2, s3, s4, s5, s6, s7];
      for (let i = 0; i < Math.min(columns, 8); i++)
        floats[out + i] = sums[i] + (bias < 0 ? 0 : floats[bias + i]) + (accumulate ? floats[out + i] : 0);
    }
  }

  /**
   * The mean of a row, and one over its deviation.
   * @param {number} x
   * @param {number} width
   * @param {number} epsilon
   */
  function statistics(x, width, epsilon) {
    let total = 0, squares = 0;
    for (let i = 0; i < width; i++) total += floats[x + i];
    const mean = total / width;
    for (let i = 0; i < width; i++) squares += (floats[x + i] - mean) ** 2;
    return { mean, scale: 1 / Math.sqrt(squares / width + epsilon) };
  }

  /**
   * As `softmax` in kernels.c, without filling up.
   * @param {number} scores
   * @param {number} count
   * @param {number} factor
   */
  function softmax(scores, count, factor) {
    let maximum = floats[scores], total = 0;
    for (let i = 1; i < count; i++) maximum = Math.max(maximum, floats[scores + i]);
    for (let i = 0; i < count; i++) total += floats[scores + i] = Math.exp(floats[scores + i] - maximum);
    for (let i = 0; i < count; i++) floats[scores + i] *= factor / total;
    return { maximum, total };
  }

  /**
   * As `key_products` in kernels.c.
   * @param {number} x
   * @param {number} xStride
   * @param {number} rows
   * @param {number} y
   * @param {number} keys
   * @param {number} dim
   * @param {number} scale
   * @param {number} out
   * @param {number} stride
   */
  function keyProducts(x, xStride, rows, y, keys, dim, scale, out, stride) {
    const panel = new Float64Array(8 * dim);
    for (let n = 0; n < keys; n += 8) {
      for (let i = 0; i < 8; i++)
        for (let d = 0; d < dim; d++) panel[d * 8 + i] = n + i < keys ? floats[y + (n + i) * dim + d] * scale : 0;
      panelProduct(panel, x, xStride, rows, dim, -1, out + n, stride, 8, false);
    }
  }

  /**
   * As `value_products` in kernels.c.
   * @param {number} x
   * @param {number} xStride
   * @param {number} rows
   * @param {number} y
   * @param {number} yStride
   * @param {number} keys
   * @param {number} dim
   * @param {number} out
   * @param {number} outStride
   * @param {boolean} accumulate
   */
  function valueProducts(x, xStride, rows, y, yStride, keys, dim, out, outStride, accumulate) {
    const panel = new Float64Array(8 * keys);
    for (let d = 0; d < dim; d += 8) {
      for (let t = 0; t < keys; t++)
        for (let i = 0; i < 8; i++) panel[t * 8 + i] = d + i < dim ? floats[y + t * yStride + d + i] : 0;
      panelProduct(panel, x, xStride, rows, keys, -1, out + d, outStride, dim - d, accumulate);
    }
  }

  return {
    linear(x, weights, isBfloat16, bias, out, outStride, rows, depth, width, accumulate) {
      const panel = new Float64Array(8 * depth);
      for (let n = 0; n < width; n += 8) {
        const start = weights / (isBfloat16 ? 2 : 4) + n * depth;
        if (isBfloat16) for (let i = 0; i < depth * 8; i++) bits[0] = halves[start + i] << 16, panel[i] = number[0];
        else for (let i = 0; i < depth * 8; i++) panel[i] = floats[start + i];
        panelProduct(panel, x / 4, depth, rows, depth, bias ? bias / 4 + n : -1, out / 4 + n, outStride, width - n, Boolean(accumulate));
      }
    },

    layer_norm(x, weight, bias, out, rows, width, epsilon) {
      x /= 4, weight /= 4, bias /= 4, out /= 4;
      for (let row = 0; row < rows; row++, x += width, out += width) {
        const { mean, scale } = statistics(x, width, epsilon);
        for (let i = 0; i < width; i++) floats[out + i] = (floats[x + i] - mean) * scale * floats[weight + i] + floats[bias + i];
      }
    },

    layer_norm_backward(x, weight, g, out, rows, width, epsilon, accumulate) {
      x /= 4, weight /= 4, g /= 4, out /= 4;
      for (let row = 0; row < rows; row++, x += width, g += width, out += width) {
        const { mean, scale } = statistics(x, width, epsilon);
        let total = 0, along = 0;
        for (let i = 0; i < width; i++) {
          const weighted = floats[g + i] * floats[weight + i];
          total += weighted, along += weighted * (floats[x + i] - mean) * scale;
        }
        for (let i = 0; i < width; i++) {
          const slope = scale * (floats[g + i] * floats[weight + i] - (total + (floats[x + i] - mean) * scale * along) / width);
          floats[out + i] = accumulate ? floats[out + i] + slope : slope;
        }
      }
    },

    activate(x, gradient, count, kind) {
      x /= 4, gradient /= 4;
      for (let i = 0; i < count; i++) {
        const { value, slope } = activationOf(floats[x + i], kind);
        if (gradient) floats[gradient + i] *= slope;
        else floats[x + i] = value;
      }
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
      const stride = (keys + 7) & ~7;
      for (let first = 0; first < queries; first += QUERIES) {
        const rows = Math.min(queries - first, QUERIES);
        keyProducts(q + first * dim, dim, rows, k, keys, dim, scale, scores, stride);
        for (let row = 0; row < rows; row++) {
          const { maximum, total } = softmax(scores + row * stride, keys, factor), place = sums + 2 * (first + row);
          floats[place] = maximum, floats[place + 1] = total;
        }
        valueProducts(scores, stride, rows, v, dim, keys, dim, out + first * outStride, outStride, false);
      }
    },

    linear_backward(g, gStride, weights, isBfloat16, out, rows, depth, width, accumulate) {
      g /= 4, weights /= isBfloat16 ? 2 : 4, out /= 4;
      const panel = new Float64Array(8 * width);
      for (let k = 0; k < depth; k += 8) {
        for (let n = 0; n < width; n++)
          for (let i = 0; i < Math.min(depth - k, 8); i++) {
            const place = weights + (n - (n % 8)) * depth + (k + i) * 8 + (n % 8);
            if (isBfloat16) bits[0] = halves[place] << 16;
            panel[n * 8 + i] = isBfloat16 ? number[0] : floats[place];
          }
        panelProduct(panel, g, gStride, rows, width, -1, out + k, depth, depth - k, Boolean(accumulate));
      }
    },

    attend_backward(q, k, v, g, gStride, gq, gk, gv, products, share, kind, scratch, tokens, dim, scale) {
      q /= 4, k /= 4, v /= 4, g /= 4, gq /= 4, gk /= 4, gv /= 4, products /= 4;
      const stride = (tokens + 7) & ~7, block = Math.min(tokens, QUERIES);
      const weights = scratch / 4, slopes = weights + block * stride, turned = slopes + block * stride;
      for (let first = 0; first < tokens; first += QUERIES) {
        const rows = Math.min(tokens - first, QUERIES);
        keyProducts(q + first * dim, dim, rows, k, tokens, dim, scale, weights, stride);
        for (let row = 0; row < rows; row++) softmax(weights + row * stride, tokens, 1);
        keyProducts(g + first * gStride, gStride, rows, v, tokens, dim, 1, slopes, stride);
        for (let row = 0; row < rows; row++)
          for (let t = 0; t < tokens; t++) floats[turned + t * block + row] = floats[weights + row * stride + t];
        valueProducts(turned, block, tokens, g + first * gStride, gStride, rows, dim, gv, dim, first > 0);
        for (let row = 0; row < rows; row++) {
          let total = 0;
          const weight = weights + row * stride, slope = slopes + row * stride, place = products + (first + row) * tokens;
          for (let t = 0; t < tokens; t++) {
            const product = floats[weight + t] * floats[slope + t];
            total += product;
            if (products && kind < 2 && (product > 0 || !kind)) floats[place + t] += share * product;
          }
          for (let t = 0; t < tokens; t++) {
            const change = floats[weight + t] * (floats[slope + t] - total);
            if (products && kind === 2) floats[products + t] += share * change;
            floats[turned + t * block + row] = floats[slope + t] = change * scale;
          }
        }
        valueProducts(slopes, stride, rows, k, dim, tokens, dim, gq + first * dim, dim, false);
        valueProducts(turned, block, tokens, q + first * dim, dim, rows, dim, gk, dim, first > 0);
      }
    },

    positive_products(g, gStride, v, totals, share, scratch, tokens, dim) {
      g /= 4, v /= 4, totals /= 4, scratch /= 4;
      const stride = (tokens + 7) & ~7;
      for (let first = 0; first < tokens; first += QUERIES) {
        const rows = Math.min(tokens - first, QUERIES);
        keyProducts(g + first * gStride, gStride, rows, v, tokens, dim, 1, scratch, stride);
        for (let row = 0; row < rows; row++)
          for (let t = 0; t < tokens; t++) floats[totals + t] += share * Math.max(0, floats[scratch + row * stride + t]);
      }
    },
  };
}
