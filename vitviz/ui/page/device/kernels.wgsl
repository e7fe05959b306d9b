// The operations of kernels.c that a forward pass needs, on the graphics card. gpu_kernels.js runs them on a copy of the
// memory of the kernels, and puts `const DIM: u32`, the width of a head, before this text.
//
// Operands are places in values of 32 bits: in the weights, or in the memory, which is all else. Calls of one kernel whose
// operands lie at even distances, such as those of all heads, are one dispatch: workgroup_id.z counts them.

struct Call {
  at: array<vec4u, 2>,
  steps: array<vec4u, 2>,
  numbers: array<vec4u, 2>,
}

@group(0) @binding(0) var<uniform> call: Call;
@group(0) @binding(1) var<storage, read> weights: array<vec4u>;
@group(0) @binding(2) var<storage, read_write> memory: array<f32>;

// The place of a bias that is none.
const NONE = 0xffffffffu;

fn place(operand: u32, index: u32) -> u32 {
  return call.at[operand / 4u][operand % 4u] + index * call.steps[operand / 4u][operand % 4u];
}

fn number(index: u32) -> u32 { return call.numbers[index / 4u][index % 4u]; }
fn real(index: u32) -> f32 { return bitcast<f32>(number(index)); }
fn weight(at: u32) -> f32 { return bitcast<f32>(weights[at / 4u][at % 4u]); }

// A linear map in tiles of 32 rows by 64 outputs, of which an invocation has four by four, by 32 inputs at a time. The rows of
// the tiles are filled up so that neighbours write to different banks.
const INPUTS = 32u;
const ROW_STRIDE = 9u;
const OUTPUT_STRIDE = 17u;
var<workgroup> row_tile: array<vec4f, INPUTS * ROW_STRIDE>;
var<workgroup> output_tile: array<vec4f, INPUTS * OUTPUT_STRIDE>;

@compute @workgroup_size(128)
fn linear(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) me: u32) {
  let x = place(0, group.z);
  let panels = place(1, group.z) / 4u;
  let bias = place(2, group.z);
  let out = place(3, group.z);
  let is_bfloat16 = number(0) != 0u;
  let out_stride = number(1);
  let rows = number(2);
  let depth = number(3);
  let width = number(4);
  let accumulates = number(5) != 0u;
  let first_row = group.y * 32u;
  let first_output = group.x * 64u;
  let four_rows = me / 16u;
  let four_outputs = me % 16u;
  var sums = array<vec4f, 4>();
  for (var start = 0u; start < depth; start += INPUTS) {
    workgroupBarrier();
    for (var i = me; i < 256u; i += 128u) {
      let k = i % INPUTS;
      let part = i / INPUTS;
      let row = first_row + part * 4u;
      var values = vec4f();
      var low = vec4f();
      var high = vec4f();
      if (start + k < depth) {
        let source = x + row * depth + start + k;
        if (row < rows) { values.x = memory[source]; }
        if (row + 1u < rows) { values.y = memory[source + depth]; }
        if (row + 2u < rows) { values.z = memory[source + 2u * depth]; }
        if (row + 3u < rows) { values.w = memory[source + 3u * depth]; }
        if (first_output + part * 8u < width) {
          let eight = (first_output / 8u + part) * depth + start + k;
          if (is_bfloat16) {
            let pairs = weights[panels + eight];
            low = bitcast<vec4f>(vec4u(pairs.x << 16u, pairs.x & 0xffff0000u, pairs.y << 16u, pairs.y & 0xffff0000u));
            high = bitcast<vec4f>(vec4u(pairs.z << 16u, pairs.z & 0xffff0000u, pairs.w << 16u, pairs.w & 0xffff0000u));
          } else {
            low = bitcast<vec4f>(weights[panels + eight * 2u]);
            high = bitcast<vec4f>(weights[panels + eight * 2u + 1u]);
          }
        }
      }
      row_tile[k * ROW_STRIDE + part] = values;
      output_tile[k * OUTPUT_STRIDE + part * 2u] = low;
      output_tile[k * OUTPUT_STRIDE + part * 2u + 1u] = high;
    }
    workgroupBarrier();
    for (var k = 0u; k < INPUTS; k++) {
      let values = row_tile[k * ROW_STRIDE + four_rows];
      let factors = output_tile[k * OUTPUT_STRIDE + four_outputs];
      sums[0] += values.x * factors;
      sums[1] += values.y * factors;
      sums[2] += values.z * factors;
      sums[3] += values.w * factors;
    }
  }
  for (var i = 0u; i < 16u; i++) {
    let row = first_row + four_rows * 4u + i / 4u;
    let output = first_output + four_outputs * 4u + i % 4u;
    if (row >= rows || output >= width) { continue; }
    let to = out + row * out_stride + output;
    var value = sums[i / 4u][i % 4u];
    if (bias != NONE) { value += weight(bias + output); }
    if (accumulates) { value += memory[to]; }
    memory[to] = value;
  }
}

var<workgroup> parts: array<f32, 64>;

// The sum of the values of 64 invocations.
fn sum_of_all(value: f32, me: u32) -> f32 {
  workgroupBarrier();
  parts[me] = value;
  workgroupBarrier();
  var total = 0.0;
  for (var i = 0u; i < 64u; i++) { total += parts[i]; }
  return total;
}

@compute @workgroup_size(64)
fn layer_norm(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) me: u32) {
  let width = number(0);
  let x = place(0, group.z) + group.x * width;
  let factors = place(1, group.z);
  let bias = place(2, group.z);
  let out = place(3, group.z) + group.x * width;
  var sum = 0.0;
  var squares = 0.0;
  for (var i = me; i < width; i += 64u) { sum += memory[x + i]; }
  let mean = sum_of_all(sum, me) / f32(width);
  for (var i = me; i < width; i += 64u) { squares += (memory[x + i] - mean) * (memory[x + i] - mean); }
  let scale = 1.0 / sqrt(sum_of_all(squares, me) / f32(width) + real(1));
  for (var i = me; i < width; i += 64u) { memory[out + i] = (memory[x + i] - mean) * scale * weight(factors + i) + weight(bias + i); }
}

// The length of each row.
@compute @workgroup_size(64)
fn lengths(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) me: u32) {
  let width = number(0);
  let x = place(0, group.z) + group.x * width;
  var squares = 0.0;
  for (var i = me; i < width; i += 64u) { squares += memory[x + i] * memory[x + i]; }
  let length = sqrt(sum_of_all(squares, me));
  if (me == 0u) { memory[place(1, group.z) + group.x] = length; }
}

fn sigmoid(x: f32) -> f32 {
  let e = exp(-abs(x));
  return select(1.0, e, x < 0.0) / (1.0 + e);
}

// As `activation` in kernels.c.
fn activation(x: f32, kind: u32) -> f32 {
  switch kind {
    case 0u: {
      let z = abs(x) * 0.70710678;
      let t = 1.0 / (1.0 + 0.3275911 * z);
      let p = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t;
      let tail = 0.5 * p * exp(-z * z);
      return x * select(1.0 - tail, tail, x < 0.0);
    }
    case 1u: { return x * sigmoid(1.5957691216 * (x + 0.044715 * x * x * x)); }
    case 2u: { return x * sigmoid(1.702 * x); }
    case 3u: { return x * sigmoid(x); }
    default: { return max(x, 0.0); }
  }
}

@compute @workgroup_size(256)
fn activate(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
  let x = place(0, id.z);
  for (var i = id.x; i < number(0); i += groups.x * 256u) { memory[x + i] = activation(memory[x + i], number(1)); }
}

@compute @workgroup_size(256)
fn multiply(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
  let x = place(0, id.z);
  let factors = place(1, id.z);
  for (var i = id.x; i < number(0); i += groups.x * 256u) { memory[x + i] *= memory[factors + i]; }
}

@compute @workgroup_size(256)
fn add(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
  let x = place(0, id.z);
  let others = place(1, id.z);
  for (var i = id.x; i < number(0); i += groups.x * 256u) { memory[x + i] += memory[others + i]; }
}

@compute @workgroup_size(256)
fn rotate(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
  const HALF = DIM / 2u;
  for (var i = id.x; i < number(0) * HALF; i += groups.x * 256u) {
    let at = place(0, id.z) + i / HALF * DIM + i % HALF;
    let first = memory[at];
    let second = memory[at + HALF];
    let cosine = memory[place(1, id.z) + i];
    let sine = memory[place(2, id.z) + i];
    memory[at] = first * cosine - second * sine;
    memory[at + HALF] = second * cosine + first * sine;
  }
}

// Attention of one head for 16 queries by 64 keys at a time: what was summed so far is scaled down whenever a greater score
// comes. An invocation has the scores of four queries and of every 16th key, and then as many values of their output.
const QUERIES = 16u;
const KEYS = 64u;
const SIXTEENS = (DIM + 15u) / 16u;
const LOWEST = -3.0e38;
var<workgroup> query_tile: array<f32, QUERIES * 17u>;
var<workgroup> key_tile: array<f32, KEYS * 17u>;
var<workgroup> score_tile: array<f32, QUERIES * 65u>;
var<workgroup> corrections: array<f32, QUERIES>;

@compute @workgroup_size(64)
fn attend(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) me: u32) {
  let q = place(0, group.z);
  let k = place(1, group.z);
  let v = place(2, group.z);
  let out_stride = number(0);
  let queries = number(1);
  let keys = number(2);
  let scale = real(3);
  let factor = real(4);
  let first_query = group.x * QUERIES;
  let four = me / 16u * 4u;
  let lane = me % 16u;
  // Of the softmax, four invocations have a query.
  let query = me / 4u;
  let quarter = query * 65u + me % 4u * 16u;
  var maximum = LOWEST;
  var sum = 0.0;
  var outputs = array<vec4f, SIXTEENS>();
  for (var first_key = 0u; first_key < keys; first_key += KEYS) {
    var scores = array<vec4f, 4>();
    for (var start = 0u; start < DIM; start += 16u) {
      workgroupBarrier();
      for (var i = me; i < QUERIES * 16u; i += 64u) {
        var value = 0.0;
        if (first_query + i / 16u < queries && start + i % 16u < DIM) {
          value = memory[q + (first_query + i / 16u) * DIM + start + i % 16u];
        }
        query_tile[i / 16u * 17u + i % 16u] = value;
      }
      for (var i = me; i < KEYS * 16u; i += 64u) {
        var value = 0.0;
        if (first_key + i / 16u < keys && start + i % 16u < DIM) {
          value = memory[k + (first_key + i / 16u) * DIM + start + i % 16u];
        }
        key_tile[i / 16u * 17u + i % 16u] = value;
      }
      workgroupBarrier();
      for (var d = 0u; d < 16u; d++) {
        let at = four * 17u + d;
        let values = vec4f(query_tile[at], query_tile[at + 17u], query_tile[at + 34u], query_tile[at + 51u]);
        for (var j = 0u; j < 4u; j++) { scores[j] += values * key_tile[(lane + 16u * j) * 17u + d]; }
      }
    }
    for (var j = 0u; j < 4u; j++) {
      let key = lane + 16u * j;
      for (var i = 0u; i < 4u; i++) { score_tile[(four + i) * 65u + key] = select(LOWEST, scores[j][i] * scale, first_key + key < keys); }
    }
    workgroupBarrier();
    var highest = LOWEST;
    for (var i = 0u; i < 16u; i++) { highest = max(highest, score_tile[quarter + i]); }
    parts[me] = highest;
    workgroupBarrier();
    let before = maximum;
    for (var i = 0u; i < 4u; i++) { maximum = max(maximum, parts[query * 4u + i]); }
    let correction = exp(before - maximum);
    sum *= correction;
    for (var i = 0u; i < 16u; i++) {
      let e = exp(score_tile[quarter + i] - maximum);
      score_tile[quarter + i] = e;
      sum += e;
    }
    if (me % 4u == 0u) { corrections[query] = correction; }
    workgroupBarrier();
    let scaled = vec4f(corrections[four], corrections[four + 1u], corrections[four + 2u], corrections[four + 3u]);
    for (var j = 0u; j < SIXTEENS; j++) { outputs[j] *= scaled; }
    for (var key = 0u; key < min(KEYS, keys - first_key); key++) {
      let at = four * 65u + key;
      let shares = vec4f(score_tile[at], score_tile[at + 65u], score_tile[at + 130u], score_tile[at + 195u]);
      let values = v + (first_key + key) * DIM + lane;
      for (var j = 0u; j < SIXTEENS; j++) {
        if (lane + 16u * j < DIM) { outputs[j] += shares * memory[values + 16u * j]; }
      }
    }
  }
  workgroupBarrier();
  parts[me] = sum;
  workgroupBarrier();
  if (me % 4u == 0u && first_query + query < queries) {
    let sums = place(4, group.z) + (first_query + query) * 2u;
    memory[sums] = maximum;
    memory[sums + 1u] = parts[me] + parts[me + 1u] + parts[me + 2u] + parts[me + 3u];
  }
  for (var i = 0u; i < 4u; i++) {
    let each = four + i;
    if (first_query + each >= queries) { continue; }
    let total = parts[each * 4u] + parts[each * 4u + 1u] + parts[each * 4u + 2u] + parts[each * 4u + 3u];
    let out = place(3, group.z) + (first_query + each) * out_stride;
    for (var j = 0u; j < SIXTEENS; j++) {
      if (lane + 16u * j < DIM) { memory[out + lane + 16u * j] = outputs[j][i] * (factor / total); }
    }
  }
}
