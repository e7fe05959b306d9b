// The operations of a Vision Transformer on rows of 32-bit floats, for WebAssembly with SIMD.
// `python -m tests.kernels` makes kernels.wasm and kernels-relaxed.wasm of this file.
//
// Weights lie in panels of eight outputs, "panel input 8", in bfloat16 or float32, the last panel filled up with
// zeros, and so does their bias. A panel of bfloat16 is widened once and then used for all rows, so that weights stay in memory
// as they are in the file.

typedef float f4 __attribute__((vector_size(16), aligned(4)));
typedef int i4 __attribute__((vector_size(16), aligned(4)));
typedef unsigned short bfloat16;
typedef unsigned int u32;

#define EXPORT(name) __attribute__((export_name(#name)))
#define ALL(x) ((f4){(x), (x), (x), (x)})
#ifdef __wasm_relaxed_simd__
#define MULTIPLY_ADD(a, b, c) __builtin_wasm_relaxed_madd_f32x4(a, b, c)
#else
#define MULTIPLY_ADD(a, b, c) ((a) * (b) + (c))
#endif

// Rows that a product computes at a time: with eight outputs, all sums stay in registers.
#define TILE 4
// Inputs of a panel, of which longer ones are used part by part.
#define PANEL_DEPTH 2048
// Queries whose scores are in memory at a time.
#define QUERIES 256

static float panel[PANEL_DEPTH * 8];

static inline f4 load(const float *p) { return *(const f4 *)p; }
static inline void store(float *p, f4 v) { *(f4 *)p = v; }
static inline float sum_of(f4 v) { return v[0] + v[1] + v[2] + v[3]; }
static inline int least(int a, int b) { return a < b ? a : b; }
// `yes` where the lanes of `condition` are set, otherwise `no`.
static inline f4 choose(i4 condition, f4 yes, f4 no) { return (f4)(((i4)yes & condition) | ((i4)no & ~condition)); }

// Eight outputs of one row, of which only the first `columns` exist.
static inline void store_outputs(float *out, f4 low, f4 high, int columns, int accumulate) {
  if (columns >= 8) {
    store(out, accumulate ? load(out) + low : low);
    store(out + 4, accumulate ? load(out + 4) + high : high);
    return;
  }
  float values[8];
  store(values, low), store(values + 4, high);
  for (int i = 0; i < columns; i++) out[i] = accumulate ? out[i] + values[i] : values[i];
}

// out[row][0..columns] = bias + x[row][0..depth] · weights[0..depth][8]; bias may be 0; accumulate adds to out.
static void panel_product(const float *x, int x_stride, int rows, int depth, const float *weights, const float *bias,
                          float *out, int out_stride, int columns, int accumulate) {
  f4 low = bias ? load(bias) : ALL(0), high = bias ? load(bias + 4) : ALL(0);
  int row = 0;
  for (; row + TILE <= rows; row += TILE) {
    const float *tile = x + row * x_stride;
    f4 sums[TILE][2];
    for (int i = 0; i < TILE; i++) sums[i][0] = low, sums[i][1] = high;
    for (int k = 0; k < depth; k++) {
      f4 w0 = load(weights + k * 8), w1 = load(weights + k * 8 + 4);
#pragma clang loop unroll(full)
      for (int i = 0; i < TILE; i++) {
        f4 value = ALL(tile[i * x_stride + k]);
        sums[i][0] = MULTIPLY_ADD(value, w0, sums[i][0]), sums[i][1] = MULTIPLY_ADD(value, w1, sums[i][1]);
      }
    }
#pragma clang loop unroll(full)
    for (int i = 0; i < TILE; i++)
      store_outputs(out + (row + i) * out_stride, sums[i][0], sums[i][1], columns, accumulate);
  }
  for (; row < rows; row++) {
    f4 sum0 = low, sum1 = high;
    for (int k = 0; k < depth; k++) {
      f4 value = ALL(x[row * x_stride + k]);
      sum0 = MULTIPLY_ADD(value, load(weights + k * 8), sum0);
      sum1 = MULTIPLY_ADD(value, load(weights + k * 8 + 4), sum1);
    }
    store_outputs(out + row * out_stride, sum0, sum1, columns, accumulate);
  }
}

// A linear map of x "row depth" to out "row width", whose rows are out_stride apart; bias may be 0; accumulate adds.
EXPORT(linear) void linear(const float *x, const void *weights, int is_bfloat16, const float *bias, float *out,
                           int out_stride, int rows, int depth, int width, int accumulate) {
  for (int n = 0; n < width; n += 8)
    for (int k = 0; k < depth; k += PANEL_DEPTH) {
      int count = least(depth - k, PANEL_DEPTH), start = n * depth + k * 8;
      const float *part = (const float *)weights + start;
      if (is_bfloat16) {
        const bfloat16 *narrow = (const bfloat16 *)weights + start;
        for (int i = 0; i < count * 8; i++) ((u32 *)panel)[i] = (u32)narrow[i] << 16;
        part = panel;
      }
      panel_product(x + k, depth, rows, count, part, bias && !k ? bias + n : 0, out + n, out_stride, width - n,
                    accumulate || k);
    }
}

// The mean of a row, and one over its deviation.
static void statistics(const float *x, int width, float epsilon, float *mean, float *scale) {
  int even = width & ~3;
  f4 sums = ALL(0), squares = ALL(0);
  float rest = 0;
  for (int i = 0; i < even; i += 4) sums += load(x + i);
  for (int i = even; i < width; i++) rest += x[i];
  float middle = (sum_of(sums) + rest) / width;
  rest = 0;
  for (int i = 0; i < even; i += 4) squares += (load(x + i) - ALL(middle)) * (load(x + i) - ALL(middle));
  for (int i = even; i < width; i++) rest += (x[i] - middle) * (x[i] - middle);
  *mean = middle, *scale = 1 / __builtin_sqrtf((sum_of(squares) + rest) / width + epsilon);
}

// The layer norm of x "row width" into out, which may be x.
EXPORT(layer_norm) void layer_norm(const float *x, const float *weight, const float *bias, float *out, int rows,
                                   int width, float epsilon) {
  for (int row = 0; row < rows; row++, x += width, out += width) {
    float mean, scale;
    statistics(x, width, epsilon, &mean, &scale);
    for (int i = 0; i < width; i++) out[i] = (x[i] - mean) * scale * weight[i] + bias[i];
  }
}

// The exponential of x <= 0: a power of two times a polynomial of the rest (Cephes, expf). Below -87 it is 1.6e-38.
static inline f4 exponential(f4 x) {
  x = choose(x > ALL(-87.f), x, ALL(-87.f));
  f4 n = __builtin_elementwise_floor(x * ALL(1.44269504f) + ALL(.5f));
  // The logarithm of two in two parts, so that the difference keeps all its digits.
  x = x - n * ALL(0.693359375f) + n * ALL(2.12194440e-4f);
  f4 p = ALL(1.9875691500e-4f);
  p = p * x + ALL(1.3981999507e-3f), p = p * x + ALL(8.3334519073e-3f), p = p * x + ALL(4.1665795894e-2f);
  p = p * x + ALL(1.6666665459e-1f), p = p * x + ALL(5.0000001201e-1f);
  p = p * x * x + x + ALL(1.f);
  return p * (f4)((__builtin_convertvector(n, i4) + 127) << 23);
}

static inline f4 magnitude(f4 x) { return (f4)((i4)x & 0x7fffffff); }

static inline f4 sigmoid(f4 x) {
  f4 e = exponential(-magnitude(x));
  return choose(x < ALL(0), e, ALL(1.f)) / (ALL(1.f) + e);
}

// The normal distribution up to x, and its density. The error function is Abramowitz & Stegun's, 7.1.26 (error below
// 1.5e-7).
static inline f4 normal(f4 x, f4 *density) {
  f4 z = magnitude(x) * ALL(0.70710678f), t = ALL(1.f) / (ALL(1.f) + z * ALL(.3275911f)), e = exponential(-z * z);
  f4 p = t * ALL(1.061405429f) + ALL(-1.453152027f);
  p = p * t + ALL(1.421413741f), p = p * t + ALL(-.284496736f), p = p * t + ALL(.254829592f);
  f4 tail = ALL(.5f) * p * t * e;
  *density = ALL(.39894228f) * e;
  return choose(x < ALL(0), tail, ALL(1.f) - tail);
}

// An activation, by its place in ACTIVATIONS of encoder.js, and its slope. `kind` is known where this is inlined.
static inline f4 activation(f4 x, int kind, f4 *slope) {
  if (kind == 4) return *slope = choose(x > ALL(0), ALL(1.f), ALL(0)), choose(x < ALL(0), ALL(0), x);
  f4 share, change;
  if (kind == 0) share = normal(x, &change);
  else {
    f4 cubic = ALL(.044715f) * x * x, factor = ALL(kind == 1 ? 1.5957691216f : kind == 2 ? 1.702f : 1.f);
    share = sigmoid(factor * (kind == 1 ? x + cubic * x : x));
    change = share * (ALL(1.f) - share) * factor * (kind == 1 ? ALL(1.f) + ALL(3.f) * cubic : ALL(1.f));
  }
  *slope = share + x * change;
  return x * share;
}

// The activations of `count` values in place, or the gradient in place times their slopes.
static inline void activate_all(float *x, float *gradient, int count, int kind) {
  for (int i = 0; i < count; i += 4) {
    f4 slope, value = activation(load(x + i), kind, &slope);
    if (gradient) store(gradient + i, load(gradient + i) * slope);
    else store(x + i, value);
  }
}

// With a pointer of 0 for the gradient, the activations of x; otherwise the gradient of x from that of its activations.
EXPORT(activate) void activate(float *x, float *gradient, int count, int kind) {
  if (kind == 0) activate_all(x, gradient, count, 0);
  if (kind == 1) activate_all(x, gradient, count, 1);
  if (kind == 2) activate_all(x, gradient, count, 2);
  if (kind == 3) activate_all(x, gradient, count, 3);
  if (kind == 4) activate_all(x, gradient, count, 4);
}

EXPORT(multiply) void multiply(float *x, const float *factors, int count) {
  for (int i = 0; i < count; i += 4) store(x + i, load(x + i) * load(factors + i));
}

// Rotary positions of x "row dim" in place; a pair is one feature of the first half and its counterpart in the second.
EXPORT(rotate) void rotate(float *x, const float *cosines, const float *sines, int rows, int dim) {
  int half = dim / 2;
  for (int row = 0; row < rows; row++, x += dim, cosines += half, sines += half)
    for (int i = 0; i < half; i++) {
      float first = x[i], second = x[i + half];
      x[i] = first * cosines[i] - second * sines[i], x[i + half] = second * cosines[i] + first * sines[i];
    }
}

// The exponentials of a row's scores minus their maximum, times `factor` over their sum; their maximum and their sum.
static void softmax(float *scores, int count, float factor, float *maximum, float *total) {
  int padded = (count + 7) & ~7;
  float most = scores[0];
  for (int i = 1; i < count; i++) most = scores[i] > most ? scores[i] : most;
  for (int i = count; i < padded; i++) scores[i] = -1e30f;
  f4 sums = ALL(0);
  for (int i = 0; i < padded; i += 4) {
    // A score that is no number must not become a small weight.
    f4 distance = load(scores + i) - ALL(most), e = choose(distance == distance, exponential(distance), distance);
    sums += e;
    store(scores + i, e);
  }
  float sum = sum_of(sums);
  for (int i = 0; i < padded; i += 4) store(scores + i, load(scores + i) * ALL(factor / sum));
  *maximum = most, *total = sum;
}

// out "row key" = x "row dim" · y "key dim" · scale; out has stride values in a row, those after the last key are 0.
static void key_products(const float *x, int x_stride, int rows, const float *y, int keys, int dim, float scale,
                         float *out, int stride) {
  for (int n = 0; n < keys; n += 8)
    for (int start = 0; start < dim; start += PANEL_DEPTH) {
      int depth = least(dim - start, PANEL_DEPTH);
      for (int i = 0; i < 8; i++)
        for (int d = 0; d < depth; d++)
          panel[d * 8 + i] = n + i < keys ? y[(n + i) * dim + start + d] * scale : 0;
      panel_product(x + start, x_stride, rows, depth, panel, 0, out + n, stride, 8, start);
    }
}

// out "row dim" = x "row key" · y "key dim", or more of it; the rows of each are as far apart as its stride.
static void value_products(const float *x, int x_stride, int rows, const float *y, int y_stride, int keys, int dim,
                           float *out, int out_stride, int accumulate) {
  for (int d = 0; d < dim; d += 8)
    for (int start = 0; start < keys; start += PANEL_DEPTH) {
      int depth = least(keys - start, PANEL_DEPTH), columns = least(dim - d, 8);
      for (int t = 0; t < depth; t++)
        for (int i = 0; i < 8; i++) panel[t * 8 + i] = i < columns ? y[(start + t) * y_stride + d + i] : 0;
      panel_product(x + start, x_stride, rows, depth, panel, 0, out + d, out_stride, columns, accumulate || start);
    }
}

// Attention of one head: out "query dim", rows out_stride apart, from q "query dim" and k, v "key dim". The weights of
// each query sum to `factor`. sums "query 2" gets the maximum of the scores and the sum of exponentials of their
// distances from it. scores is memory for the scores of QUERIES queries, their keys filled up to a multiple of eight.
EXPORT(attend) void attend(const float *q, const float *k, const float *v, float *out, int out_stride, float *sums,
                           float *scores, int queries, int keys, int dim, float scale, float factor) {
  int stride = (keys + 7) & ~7;
  for (int first = 0; first < queries; first += QUERIES) {
    int rows = least(queries - first, QUERIES);
    key_products(q + first * dim, dim, rows, k, keys, dim, scale, scores, stride);
    for (int row = 0; row < rows; row++)
      softmax(scores + row * stride, keys, factor, sums + (first + row) * 2, sums + (first + row) * 2 + 1);
    value_products(scores, stride, rows, v, dim, keys, dim, out + first * out_stride, out_stride, 0);
  }
}

// Backwards. The gradient of a linear map's input, out "row depth", from that of its output, g "row width" with rows
// g_stride apart; accumulate adds.
EXPORT(linear_backward) void linear_backward(const float *g, int g_stride, const void *weights, int is_bfloat16,
                                             float *out, int rows, int depth, int width, int accumulate) {
  for (int k = 0; k < depth; k += 8)
    for (int start = 0; start < width; start += PANEL_DEPTH) {
      int count = least(width - start, PANEL_DEPTH), columns = least(depth - k, 8);
      for (int n = 0; n < count; n += 8)
        for (int i = 0; i < columns; i++)
          for (int lane = 0; lane < 8; lane++) {
            int place = ((start + n) * depth) + (k + i) * 8 + lane;
            u32 bits = is_bfloat16 ? (u32)((const bfloat16 *)weights)[place] << 16 : ((const u32 *)weights)[place];
            ((u32 *)panel)[(n + lane) * 8 + i] = bits;
          }
      panel_product(g + start, g_stride, rows, count, panel, 0, out + k, depth, columns, accumulate || start);
    }
}

// The gradient of a layer norm's input x "row width" from that of its output, g, into out, which may be g.
EXPORT(layer_norm_backward) void layer_norm_backward(const float *x, const float *weight, const float *g, float *out,
                                                     int rows, int width, float epsilon, int accumulate) {
  for (int row = 0; row < rows; row++, x += width, g += width, out += width) {
    float mean, scale, total = 0, along = 0;
    statistics(x, width, epsilon, &mean, &scale);
    for (int i = 0; i < width; i++)
      total += g[i] * weight[i], along += g[i] * weight[i] * (x[i] - mean) * scale;
    for (int i = 0; i < width; i++) {
      float slope = scale * (g[i] * weight[i] - (total + (x[i] - mean) * scale * along) / width);
      out[i] = accumulate ? out[i] + slope : slope;
    }
  }
}

// The gradients gq, gk, gv "token dim" of one head's queries, keys and values from that of its output, g "token dim"
// with rows g_stride apart. products "query key", unless it is 0, gets `share` times the weights times the gradient of
// the weights more; of kind 1, only where that is positive; of kind 2, products is "key", and gets `share` times the sum
// over queries of the gradient of the scaled scores more. scratch is three times as large as in attend.
EXPORT(attend_backward) void attend_backward(const float *q, const float *k, const float *v, const float *g,
                                             int g_stride, float *gq, float *gk, float *gv, float *products,
                                             float share, int kind, float *scratch, int tokens, int dim,
                                             float scale) {
  int stride = (tokens + 7) & ~7, block = least(tokens, QUERIES);
  float *weights = scratch, *slopes = weights + block * stride, *turned = slopes + block * stride, unused[2];
  for (int first = 0; first < tokens; first += QUERIES) {
    int rows = least(tokens - first, QUERIES);
    key_products(q + first * dim, dim, rows, k, tokens, dim, scale, weights, stride);
    for (int row = 0; row < rows; row++) softmax(weights + row * stride, tokens, 1, unused, unused + 1);
    key_products(g + first * g_stride, g_stride, rows, v, tokens, dim, 1, slopes, stride);
    for (int row = 0; row < rows; row++)
      for (int t = 0; t < tokens; t++) turned[t * block + row] = weights[row * stride + t];
    value_products(turned, block, tokens, g + first * g_stride, g_stride, rows, dim, gv, dim, first);
    for (int row = 0; row < rows; row++) {
      float *weight = weights + row * stride, *slope = slopes + row * stride, total = 0;
      for (int t = 0; t < tokens; t++) {
        float product = weight[t] * slope[t];
        total += product;
        if (products && kind < 2 && (product > 0 || !kind)) products[(first + row) * tokens + t] += share * product;
      }
      for (int t = 0; t < tokens; t++) {
        float change = weight[t] * (slope[t] - total);
        if (products && kind == 2) products[t] += share * change;
        turned[t * block + row] = slope[t] = change * scale;
      }
    }
    value_products(slopes, stride, rows, k, dim, tokens, dim, gq + first * dim, dim, 0);
    value_products(turned, block, tokens, q + first * dim, dim, rows, dim, gk, dim, first);
  }
}

// totals "key" gets `share` times the sum over queries of the positive products of g "query dim", rows g_stride apart,
// and v "key dim" more. scratch is as large as in attend.
EXPORT(positive_products) void positive_products(const float *g, int g_stride, const float *v, float *totals,
                                                 float share, float *scratch, int tokens, int dim) {
  int stride = (tokens + 7) & ~7;
  for (int first = 0; first < tokens; first += QUERIES) {
    int rows = least(tokens - first, QUERIES);
    key_products(g + first * g_stride, g_stride, rows, v, tokens, dim, 1, scratch, stride);
    for (int row = 0; row < rows; row++)
      for (int t = 0; t < tokens; t++)
        if (scratch[row * stride + t] > 0) totals[t] += share * scratch[row * stride + t];
  }
}
