// The forward pass on a graphics card, by WebGPU: a copy of the kernels' memory and weights is there, `encoder.js` gives the same
// orders, and what a pass leaves in memory is copied back, so that all else reads it where it always is.

import { ALONE } from "./encoder.js";

/** Adapters that compute in software, which WebAssembly does faster. */
const SOFTWARE = /swiftshader|llvmpipe|lavapipe|softpipe|basic render|\bwarp\b/i;
const SCOPES = /** @type {const} */ (["validation", "out-of-memory", "internal"]);
const KERNEL_NAMES = ["linear", "layer_norm", "lengths", "activate", "multiply", "add", "rotate", "attend"];
/** The place of a bias that is none. */
const NONE = 0xffffffff;
/** Values of a call: where each operand is, how far it is to that of the next call, and numbers; eight of each at most. */
const CALL_VALUES = 24;
/** Calls lie at multiples of what all cards allow. */
const CALL_BYTES = 256;
const MAX_CALLS = 256;
const MAX_GROUPS = 65535;
const MAX_COPY_BYTES = 2 ** 25;
/** A card that does not answer by then is given up. */
const MAX_WAIT_MS = 60_000;
/** The error that the card may have, of the largest number of a kind, or of 1. */
const TOLERANCE = 1e-4;

/** @typedef {{ kernel: string, at: number[], steps: number[], numbers: number[], groups: [number, number, number] }} Call */

/**
 * The bits of a number of 32 bits.
 * @param {number} value
 */
const bitsOf = (value) => new Uint32Array(Float32Array.of(value).buffer)[0];

/** A network on a card. In place of `Kernels`, it takes orders of the forward pass, which it carries out at each layer's end. */
class GpuKernels {
  /**
   * @param {Network} network in the memory of the kernels
   * @param {GPUDevice} device
   * @param {string} card what it is called
   * @param {boolean} mayBeSlow
   */
  constructor(network, device, card, mayBeSlow) {
    const { kernels, weights } = network;
    this.card = card;
    this.mayBeSlow = mayBeSlow;
    this.device = device;
    this.network = network;
    /** The same network, which gives its orders here. @type {Network} */
    this.copy = Object.assign(Object.create(network), { kernels: this });
    this.start = network.at.stream;
    /** @type {Call[]} */
    this.calls = [];
    /** @type {Record<string, GPUComputePipeline>} */
    this.pipelines = {};
    /** What is read goes through it. @type {GPUBuffer | null} */
    this.staging = null;
    const buffer = (/** @type {number} */ size, /** @type {number} */ usage) => device.createBuffer({ size, usage });
    this.weights = buffer(network.weightBytes, GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_DST);
    this.memory = buffer(memoryBytes(network), GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_DST | GPUBufferUsage.COPY_SRC);
    this.orders = buffer(MAX_CALLS * CALL_BYTES, GPUBufferUsage.UNIFORM | GPUBufferUsage.COPY_DST);
    // Whatever is written is copied first.
    for (let at = 0; at < network.weightBytes; at += MAX_COPY_BYTES)
      device.queue.writeBuffer(this.weights, at, kernels.buffer, weights + at, Math.min(network.weightBytes - at, MAX_COPY_BYTES));
    const types = /** @type {const} */ (["uniform", "read-only-storage", "storage"]);
    this.layout = device.createBindGroupLayout({ entries: types.map((type, binding) =>
      ({ binding, visibility: GPUShaderStage.COMPUTE, buffer: { type, hasDynamicOffset: type === "uniform" } })) });
    const buffers = [{ buffer: this.orders, size: CALL_VALUES * 4 }, { buffer: this.weights }, { buffer: this.memory }];
    this.group = device.createBindGroup({ layout: this.layout, entries: buffers.map((resource, binding) => ({ binding, resource })) });
    const memory = (/** @type {number} */ pointer) => (pointer - this.start) / 4;
    const weight = (/** @type {number} */ pointer) => (pointer ? (pointer - weights) / 4 : NONE);
    const flat = (/** @type {number} */ count) => [Math.min(Math.ceil(count / 256), MAX_GROUPS)];
    /** The functions of kernels.c that a forward pass calls. */
    this.run = {
      /** @type {KernelFunctions["linear"]} */
      linear: (x, panels, isBfloat16, bias, out, outStride, rows, depth, width, accumulate) =>
        this.order("linear", [memory(x), weight(panels), weight(bias), memory(out)],
          [isBfloat16, outStride, rows, depth, width, accumulate], [Math.ceil(width / 64), Math.ceil(rows / 32)]),
      /** @type {KernelFunctions["layer_norm"]} */
      layer_norm: (x, factors, bias, out, rows, width, epsilon) =>
        this.order("layer_norm", [memory(x), weight(factors), weight(bias), memory(out)], [width, bitsOf(epsilon)], [rows]),
      /** @type {KernelFunctions["activate"]} */
      activate: (x, _, count, kind) => this.order("activate", [memory(x)], [count, kind], flat(count)),
      /** @type {KernelFunctions["multiply"]} */
      multiply: (x, factors, count) => this.order("multiply", [memory(x), memory(factors)], [count], flat(count)),
      /** @type {KernelFunctions["rotate"]} */
      rotate: (x, cosines, sines, rows, dim) =>
        this.order("rotate", [memory(x), memory(cosines), memory(sines)], [rows], flat(rows * dim / 2)),
      /** @type {KernelFunctions["attend"]} */
      attend: (q, k, v, out, outStride, sums, _, queries, keys, dim, scale, factor) =>
        this.order("attend", [q, k, v, out, sums].map(memory), [outStride, queries, keys, bitsOf(scale), bitsOf(factor)],
          [Math.ceil(queries / 16)]),
    };
    /** @type {import("./kernels.js").Kernels["add"]} */
    this.add = (x, others, count) => this.order("add", [memory(x), memory(others)], [count], flat(count));
    /** @type {import("./kernels.js").Kernels["lengths"]} */
    this.lengths = (x, out, rows, width) => this.order("lengths", [memory(x), memory(out)], [width], [rows]);
  }

  /**
   * Compiles the kernels.
   * @param {string} shaders the text of kernels.wgsl
   */
  async compile(shaders) {
    const { device, network: { config } } = this, layout = device.createPipelineLayout({ bindGroupLayouts: [this.layout] });
    const module = device.createShaderModule({ code: `const DIM: u32 = ${config.head_width};\n${shaders}` });
    const wrong = (await module.getCompilationInfo()).messages.find(({ type }) => type === "error");
    if (wrong) throw Error(`kernels.wgsl, line ${wrong.lineNum - 1}: ${wrong.message}`);
    await Promise.all(KERNEL_NAMES.map(async (entryPoint) => {
      this.pipelines[entryPoint] = await device.createComputePipelineAsync({ layout, compute: { module, entryPoint } });
    }));
  }

  /**
   * A view of the kernels' own memory.
   * @param {number} pointer
   * @param {number} count
   */
  floats(pointer, count) {
    return this.network.kernels.floats(pointer, count);
  }

  /**
   * Copies what was written into the kernels' own memory.
   * @param {number} pointer
   * @param {number} count
   */
  written(pointer, count) {
    this.flush();
    this.device.queue.writeBuffer(this.memory, pointer - this.start, this.network.kernels.buffer, pointer, count * 4);
  }

  /**
   * @param {string} kernel
   * @param {number[]} at places of its operands, in values
   * @param {number[]} numbers
   * @param {number[]} groups
   */
  order(kernel, at, numbers, [across, down = 1]) {
    if (across && down) this.calls.push({ kernel, at, steps: at.map(() => 0), numbers, groups: [across, down, 1] });
  }

  /**
   * Orders what does not depend on each other: the same calls of the same sizes become one, if their operands lie at even distances.
   * @param {number} count
   * @param {(index: number) => void} act
   */
  each(count, act) {
    const before = this.calls, lists = Array.from({ length: count }, (_, index) => {
      this.calls = [];
      act(index);
      return this.calls;
    });
    this.calls = before;
    lists[0].forEach((_, index) => {
      /** @type {Call | null} */
      let last = null;
      for (const call of lists.map((list) => list[index])) {
        const calls = last?.groups[2] ?? 0, steps = call.at.map((at, i) => (at - (last?.at[i] ?? 0)) / calls);
        const isNext = last && call.numbers.every((value, i) => value === last?.numbers[i])
          && (calls === 1 ? steps.every((step) => step >= 0) : steps.every((step, i) => step === last?.steps[i]));
        if (last && isNext) last.steps = steps, last.groups[2]++;
        else before.push(last = call);
      }
    });
  }

  /** Sends the card what was ordered. */
  flush() {
    for (; this.calls.length; this.calls = this.calls.slice(MAX_CALLS)) {
      const calls = this.calls.slice(0, MAX_CALLS), values = new Uint32Array(calls.length * CALL_BYTES / 4);
      const encoder = this.device.createCommandEncoder(), pass = encoder.beginComputePass();
      calls.forEach(({ kernel, at, steps, numbers, groups }, index) => {
        [at, steps, numbers].forEach((part, place) => values.set(part, index * CALL_BYTES / 4 + place * 8));
        pass.setPipeline(this.pipelines[kernel]);
        pass.setBindGroup(0, this.group, [index * CALL_BYTES]);
        pass.dispatchWorkgroups(...groups);
      });
      pass.end();
      this.device.queue.writeBuffer(this.orders, 0, values);
      this.device.queue.submit([encoder.finish()]);
    }
  }

  /**
   * Copies parts of the memory back into the kernels' own.
   * @param {Float32Array[]} parts views of it
   */
  async read(parts) {
    this.flush();
    /** @type {{ pointer: number, size: number }[]} */
    const ranges = [];
    for (const { byteOffset: pointer, byteLength: size } of parts) {
      const last = ranges.at(-1);
      if (last && last.pointer + last.size === pointer) last.size += size;
      else ranges.push({ pointer, size });
    }
    const size = ranges.reduce((total, range) => total + range.size, 0), encoder = this.device.createCommandEncoder();
    if (!this.staging || this.staging.size < size)
      this.staging = this.device.createBuffer({ size, usage: GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST });
    const { staging } = this;
    let at = 0;
    for (const { pointer, size } of ranges) {
      encoder.copyBufferToBuffer(this.memory, pointer - this.start, staging, at, size);
      at += size;
    }
    this.device.queue.submit([encoder.finish()]);
    await inTime(staging.mapAsync(GPUMapMode.READ, 0, size));
    const found = new Uint8Array(staging.getMappedRange(0, size)), memory = new Uint8Array(this.network.kernels.buffer);
    at = 0;
    for (const { pointer, size } of ranges) {
      memory.set(found.subarray(at, at + size), pointer);
      at += size;
    }
    staging.unmap();
  }

  /**
   * As `encode` of encoder.js. After an error, there is nothing more to be had from this card.
   * @param {Float32Array} pixels
   * @param {EncodeOptions} options
   * @param {Rank} rank alone
   * @param {Network} network that gives its orders here
   */
  async encode(pixels, options, rank, network = this.copy) {
    const { device } = this;
    for (const scope of SCOPES) device.pushErrorScope(scope);
    const team = {
      ...rank,
      gather: (/** @type {(rank: number) => Float32Array[]} */ partsOf) => {
        const parts = partsOf(0), { at, inner, config: { depth, width } } = network;
        // Of several ranks, each has all keys before.
        return this.read(parts.length === 1 ? parts : [...parts, this.floats(at.keys, parts[0].length / width * depth * inner)]);
      },
      onLayer: (/** @type {number} */ layer) => (this.flush(), rank.onLayer(layer)),
    };
    let encoding, errors;
    try {
      encoding = /** @type {Encoding} */ (await network.encode(pixels, options, team));
    } finally {
      this.calls = [];
      errors = allErrors(device);
    }
    const error = await inTime(errors);
    if (error) throw Error(error);
    return { ...encoding, card: this.card };
  }

  /**
   * Throws if the card computes other numbers than the kernels, or takes longer. All tokens of one layer need as many tiles as all
   * layers do.
   */
  async check() {
    const { network } = this, { patches, patchPixels, config } = network;
    const pixels = Float32Array.from({ length: patches * patchPixels }, (_, i) => Math.sin(i));
    const shallow = Object.assign(Object.create(network), { config: { ...config, depth: 1 } });
    shallow.reader = shallow;
    // What this pass does not compute is not yet in memory.
    const found = await this.encode(pixels, {}, ALONE, Object.assign(Object.create(shallow), { kernels: this })), start = performance.now();
    const expected = /** @type {Encoding} */ (await shallow.encode(pixels)), layer = performance.now() - start;
    for (const name of /** @type {const} */ (["logits", "queries", "keys", "logSums", "tokens"])) {
      const most = expected[name].reduce((most, value) => Math.max(most, Math.abs(value)), 1);
      const isSame = expected[name].every((value, i) => Math.abs(value - found[name][i]) <= TOLERANCE * most);
      if (!isSame) throw Error(`${this.card}: ${name} are not those of WebAssembly`);
    }
    const before = performance.now();
    if (!this.mayBeSlow) await this.encode(pixels, {}, ALONE);
    // Two workers share out the tokens.
    if (performance.now() - before > layer * config.depth / 2) throw Error(`${this.card} is slower than WebAssembly`);
  }

  close() {
    this.device.destroy();
  }
}

/**
 * The bytes of a network's activations.
 * @param {Network} network
 */
const memoryBytes = (network) => Math.ceil((network.end - network.at.stream) / 4) * 4;

/**
 * @template T
 * @param {Promise<T>} answer
 */
async function inTime(answer) {
  let timer = 0;
  const late = new Promise((_, reject) => { timer = setTimeout(reject, MAX_WAIT_MS, Error("the card does not answer")); });
  return Promise.race([answer, late]).finally(() => clearTimeout(timer));
}

/**
 * The first error since the scopes were pushed, or "".
 * @param {GPUDevice} device
 */
async function allErrors(device) {
  const errors = await Promise.allSettled(SCOPES.map(() => device.popErrorScope()));
  return errors.map((each) => (each.status === "fulfilled" ? each.value?.message : String(each.reason))).find(Boolean) ?? "";
}

/**
 * A network on this device's graphics card. Throws where there is none, or none that can run it.
 * @param {Network} network in the memory of the kernels
 * @param {GpuOptions} options
 */
export async function openGpu(network, { shaders, software = false }) {
  const adapter = await navigator.gpu?.requestAdapter({ powerPreference: "high-performance" });
  if (!adapter) throw Error("no WebGPU");
  const { vendor, architecture, device: model, description, isFallbackAdapter } = adapter.info;
  const card = [vendor, architecture, model, description].filter(Boolean).join(" ") || "a graphics card";
  if (!software && (isFallbackAdapter || SOFTWARE.test(card))) throw Error(`${card} is software`);
  const size = Math.max(network.weightBytes, memoryBytes(network));
  const device = await adapter.requestDevice({ requiredLimits: { maxStorageBufferBindingSize: size, maxBufferSize: size } });
  for (const scope of SCOPES) device.pushErrorScope(scope);
  try {
    const gpu = new GpuKernels(network, device, card, software), errors = allErrors(device);
    await gpu.compile(shaders);
    const error = await errors;
    if (error) throw Error(error);
    return gpu;
  } catch (error) {
    device.destroy();
    throw error;
  }
}
