// The kernels with their memory: of WebAssembly, or of plain JavaScript.

import { plainKernels } from "./plain_kernels.js";

const WASM_PAGE_BYTES = 65536;
const ALIGNMENT_BYTES = 16;

/**
 * Runs what takes memory, and says how much it was if there is too little.
 * @template T
 * @param {number} bytes
 * @param {() => T} take
 */
function withMemory(bytes, take) {
  try {
    return take();
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
    throw Error(`The network takes ${Math.ceil(bytes / 1e6)} MB of memory, more than this browser gives`);
  }
}

/** The kernels and their memory, which is taken as a whole once, since growing it detaches all views of it. */
export class Kernels {
  /**
   * @param {KernelKind} kind
   * @param {WebAssembly.Module | null} module null for plain JavaScript
   */
  constructor(kind, module) {
    this.kind = kind;
    this.instance = module && new WebAssembly.Instance(module);
    /** @type {ArrayBuffer} */
    this.buffer = new ArrayBuffer(0);
    this.top = 0;
    /** @type {KernelFunctions} */
    this.run = /** @type {any} */ (this.instance?.exports);
  }

  /**
   * Takes all memory; what was in it is lost.
   * @param {number} bytes
   */
  reserve(bytes) {
    if (this.instance) {
      const { memory, __heap_base: base } = /** @type {any} */ (this.instance.exports);
      this.top = base.value;
      const lacking = this.top + bytes - memory.buffer.byteLength;
      if (lacking > 0) withMemory(bytes, () => memory.grow(Math.ceil(lacking / WASM_PAGE_BYTES)));
      this.buffer = memory.buffer;
    } else {
      // Zero is the pointer of a bias that is none.
      this.top = ALIGNMENT_BYTES;
      this.buffer = withMemory(bytes, () => new ArrayBuffer(Math.ceil((this.top + bytes) / ALIGNMENT_BYTES) * ALIGNMENT_BYTES));
      this.run = plainKernels(this.buffer);
    }
  }

  /**
   * Takes more memory, and keeps what is in it. Views of the memory before are detached.
   * @param {number} bytes
   */
  extend(bytes) {
    const lacking = this.top + bytes + ALIGNMENT_BYTES - this.buffer.byteLength;
    if (lacking <= 0) return;
    if (this.instance) {
      const { memory } = /** @type {any} */ (this.instance.exports);
      withMemory(this.top + bytes, () => memory.grow(Math.ceil(lacking / WASM_PAGE_BYTES)));
      this.buffer = memory.buffer;
    } else {
      const old = new Uint8Array(this.buffer), length = Math.ceil((old.length + lacking) / ALIGNMENT_BYTES) * ALIGNMENT_BYTES;
      this.buffer = withMemory(this.top + bytes, () => new ArrayBuffer(length));
      new Uint8Array(this.buffer).set(old);
      this.run = plainKernels(this.buffer);
    }
  }

  /**
   * The pointer of a part of the memory that is not given again.
   * @param {number} bytes
   */
  take(bytes) {
    const pointer = Math.ceil(this.top / ALIGNMENT_BYTES) * ALIGNMENT_BYTES;
    this.top = pointer + bytes;
    if (this.top > this.buffer.byteLength) throw Error(`${this.top} bytes of memory: ${this.buffer.byteLength} were reserved`);
    return pointer;
  }

  /**
   * A view of values in memory.
   * @param {number} pointer
   * @param {number} count
   */
  floats(pointer, count) {
    return new Float32Array(this.buffer, pointer, count);
  }

  /**
   * Says that values were written into views of the memory, which kernels with another one have to copy.
   * @param {number} _pointer
   * @param {number} _count
   */
  written(_pointer, _count) {}

  /**
   * Does something for every number below `count`, in any order.
   * @param {number} count
   * @param {(index: number) => void} act
   */
  each(count, act) {
    for (let index = 0; index < count; index++) act(index);
  }

  /**
   * Adds others to the values of x.
   * @param {number} x
   * @param {number} others
   * @param {number} count
   */
  add(x, others, count) {
    const values = this.floats(x, count), added = this.floats(others, count);
    for (let i = 0; i < count; i++) values[i] += added[i];
  }

  /**
   * The length of each row of x.
   * @param {number} x "row width"
   * @param {number} out "row"
   * @param {number} rows
   * @param {number} width
   */
  lengths(x, out, rows, width) {
    const values = this.floats(x, rows * width), found = this.floats(out, rows);
    for (let row = 0; row < rows; row++) {
      let total = 0;
      for (let i = row * width; i < (row + 1) * width; i++) total += values[i] ** 2;
      found[row] = Math.sqrt(total);
    }
  }
}

/**
 * The fastest kernels that this browser runs.
 * @param {{ relaxed?: BufferSource | null, simd?: BufferSource | null }} wasm the contents of kernels-relaxed.wasm and
 *   kernels.wasm; without both, the kernels are plain JavaScript
 */
export function openKernels(wasm) {
  for (const kind of /** @type {const} */ (["relaxed", "simd"])) {
    const bytes = wasm[kind];
    if (!bytes) continue;
    try {
      return new Kernels(kind, new WebAssembly.Module(bytes));
    } catch {
      // This browser lacks these instructions, or its page forbids WebAssembly.
    }
  }
  return new Kernels("plain", null);
}
