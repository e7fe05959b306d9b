// The kernels with their memory, in WebAssembly.

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
   * @param {WebAssembly.Module} module
   */
  constructor(kind, module) {
    this.kind = kind;
    const { memory, __heap_base: base, ...run } = /** @type {any} */ (new WebAssembly.Instance(module).exports);
    /** @type {ArrayBuffer} */
    this.buffer = new ArrayBuffer(0);
    /** @type {WebAssembly.Memory} */
    this.memory = memory;
    this.base = this.top = base.value;
    /** @type {KernelFunctions} */
    this.run = run;
  }

  /**
   * Takes all memory; what was in it is lost.
   * @param {number} bytes
   */
  reserve(bytes) {
    this.top = this.base;
    this.grow(bytes, bytes);
  }

  /**
   * Takes more memory, and keeps what is in it. Views of the memory before are detached.
   * @param {number} bytes
   */
  extend(bytes) {
    this.grow(bytes + ALIGNMENT_BYTES, this.top + bytes);
  }

  /**
   * Makes room for bytes behind those that are taken.
   * @param {number} bytes
   * @param {number} total of all, as an error names them
   */
  grow(bytes, total) {
    const lacking = this.top + bytes - this.memory.buffer.byteLength;
    if (lacking > 0) withMemory(total, () => this.memory.grow(Math.ceil(lacking / WASM_PAGE_BYTES)));
    this.buffer = this.memory.buffer;
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
 * @param {KernelBinaries} wasm
 */
export function openKernels(wasm) {
  for (const kind of /** @type {const} */ (["relaxed", "simd"])) {
    const bytes = wasm[kind];
    if (!bytes) continue;
    try {
      return new Kernels(kind, new WebAssembly.Module(bytes));
    } catch {
      // This browser lacks these instructions, or forbids WebAssembly.
    }
  }
  throw Error("This browser forbids WebAssembly, or lacks its SIMD instructions, with which this page computes");
}
