// Files of the server: safetensors, as `vitviz/ui/packs.py` describes them.

import { sum } from "./numbers.js";

// The limit for the files of one analysis in memory.
const MAX_LOADED_BYTES = 256 * 2 ** 20;
const MAX_DOWNLOADS = 2;

/**
 * The bytes of a text in base64.
 * @param {string} text
 * @returns {Uint8Array<ArrayBuffer>}
 */
export function fromBase64(text) {
  // Not every browser has it, and it is many times faster.
  const { fromBase64: decode } = /** @type {any} */ (Uint8Array);
  return decode ? decode.call(Uint8Array, text) : Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
}

/**
 * Bytes as a text in base64.
 * @param {ArrayBuffer} buffer
 */
export function asBase64(buffer) {
  let text = "";
  for (const byte of new Uint8Array(buffer)) text += String.fromCharCode(byte);
  return btoa(text);
}

/**
 * Bytes or text, compressed by the browser.
 * @param {BlobPart} content
 * @param {CompressionFormat} format
 */
export async function compressed(content, format) {
  const stream = new Blob([content]).stream().pipeThrough(new CompressionStream(format));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** The value of every float16, by its bits. */
const HALVES = Float32Array.from({ length: 65536 }, (_, bits) => {
  const sign = bits & 0x8000 ? -1 : 1, exponent = (bits >> 10) & 31, fraction = bits & 1023;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (Number(exponent > 0) + fraction / 1024) * 2 ** (Math.max(exponent, 1) - 15);
});

/** @param {Uint16Array} halves */
function fromHalves(halves) {
  const values = new Float32Array(halves.length);
  for (let index = 0; index < values.length; index++) values[index] = HALVES[halves[index]];
  return values;
}

/**
 * The tensors of one file by name, each a Float32Array with its shape beside it.
 * @param {ArrayBuffer} buffer
 */
export function readPack(buffer) {
  const length = Number(new DataView(buffer).getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, length)));
  const { __metadata__: metadata = {}, ...entries } = header, first = 8 + length;
  // A view of a part keeps the whole file in memory.
  const isView = first % 4 === 0 && Object.values(entries).every(({ dtype }) => dtype === "F32");
  /** @type {any} */
  const tensors = {};
  for (const [name, { dtype, shape, data_offsets: [start, end] }] of Object.entries(entries)) {
    const offset = first + start;
    if (isView) tensors[name] = new Float32Array(buffer, offset, (end - start) / 4);
    else if (dtype === "F32") tensors[name] = new Float32Array(buffer.slice(offset, offset + end - start));
    else if (dtype === "F16") tensors[name] = fromHalves(new Uint16Array(buffer, offset, (end - start) / 2));
    else throw Error(`${name}: no tensor of ${dtype} can be read`);
    tensors[name].shape = shape;
  }
  // Not enumerable, so that only tensors are counted.
  Object.defineProperty(tensors, "metadata", { value: metadata });
  return tensors;
}

/** The files of one analysis, fetched by priority; what does not fit into memory is dropped, lowest priority first. */
export class Packs {
  /**
   * @param {(file: AnalysisFile, onUnfinished: (file: ArrayBuffer) => void) => Promise<ArrayBuffer>} fetchFile returns a promise of an
   *   ArrayBuffer for a file, and may hand over what there is of it before
   * @param {(name: string, error: any) => void} onChange is called with a name when its file is loaded, or with a name and an error
   * @param {number=} maxBytes of all loaded tensors; a single file may be larger
   */
  constructor(fetchFile, onChange, maxBytes = MAX_LOADED_BYTES) {
    this.fetchFile = fetchFile;
    this.onChange = onChange;
    this.maxBytes = maxBytes;
    /** @type {Map<string, Tensors>} */
    this.loaded = new Map();
    /** @type {Set<string>} */
    this.loading = new Set();
    /** @type {string[]} */
    this.priorities = [];
    /** @type {Map<string, AnalysisFile>} */
    this.files = new Map();
    this.closed = false;
    // Of every file that was ever loaded: one that does not fit is not fetched again.
    /** @type {Map<string, number>} */
    this.sizes = new Map();
    /** @type {Map<string | undefined, RequestError>} */
    this.failed = new Map();
  }

  /** @param {string} name */
  get(name) {
    return this.loaded.get(name);
  }

  /** Of all that is loaded. */
  get bytes() {
    return sum([...this.loaded.keys()].map((name) => this.sizes.get(name) ?? 0));
  }

  /** The error of the failed file with the highest priority; undefined if none failed. */
  get failure() {
    return this.failed.get(this.priorities.find((name) => this.failed.has(name)));
  }

  /**
   * Request files, highest priority first; a failed one is tried again once it was not requested in between.
   * @param {AnalysisFile[]} files each with a name, and those of maps with method and parameters
   */
  request(files) {
    this.files = new Map(files.map((file) => [file.name, file]));
    this.priorities = [...this.files.keys()];
    for (const name of this.failed.keys()) if (!this.files.has(name ?? "")) this.failed.delete(name);
    this.fill();
  }

  close() {
    this.closed = true;
    this.loaded.clear();
  }

  /** Try the failed files again. */
  retry() {
    this.failed.clear();
    this.fill();
  }

  fill() {
    while (!this.closed && this.loading.size < MAX_DOWNLOADS) {
      const index = this.priorities.findIndex((name) => !this.loaded.has(name) && !this.loading.has(name) && !this.failed.has(name));
      if (index < 0 || !this.fits(index)) return;
      this.load(/** @type {AnalysisFile} */ (this.files.get(this.priorities[index])));
    }
  }

  /**
   * Whether the file at an index fits into memory together with all of higher priority.
   * @param {number} index
   */
  fits(index) {
    const largest = Math.max(0, ...this.sizes.values());
    const together = sum(this.priorities.slice(0, index + 1).map((name) => this.sizes.get(name) ?? largest));
    return index === 0 || together <= this.maxBytes;
  }

  /** @param {AnalysisFile} file */
  async load(file) {
    const { name } = file;
    this.loading.add(name);
    this.failed.delete(name);
    try {
      const content = await this.fetchFile(file, (unfinished) => {
        if (!this.loading.has(name)) return;
        this.keep(name, unfinished);
        this.onChange(name, null);
      });
      if (this.closed) return;
      this.loading.delete(name);
      this.keep(name, content);
      this.onChange(name, null);
      this.fill();
    } catch (thrown) {
      const error = /** @type {RequestError} */ (thrown);
      this.loading.delete(name);
      if (this.closed) return;
      this.loaded.delete(name);
      // The request was replaced by another one.
      if (error.replaced) return this.fill();
      this.failed.set(name, error);
      this.onChange(name, error);
    }
  }

  /**
   * @param {string} name
   * @param {ArrayBuffer} content
   */
  keep(name, content) {
    if (this.closed) return;
    const tensors = readPack(content);
    this.loaded.set(name, tensors);
    this.sizes.set(name, sum(/** @type {Tensor[]} */ (Object.values(tensors)).map(({ byteLength }) => byteLength)));
    this.drop();
  }

  drop() {
    const rank = (/** @type {string} */ name) => (this.priorities.includes(name) ? this.priorities.indexOf(name) : Infinity);
    const leaving = [...this.loaded.keys()].sort((a, b) => rank(b) - rank(a));
    while (this.bytes > this.maxBytes && this.loaded.size > 1) this.loaded.delete(/** @type {string} */ (leaving.shift()));
  }
}

/**
 * The name of the file of a map, whatever the order of its parameters.
 * @param {string} method
 * @param {Record<string, any>} parameters
 */
export function mapName(method, parameters) {
  const sorted = Object.fromEntries(Object.entries(parameters).sort(([a], [b]) => (a < b ? -1 : 1)));
  return `map ${JSON.stringify([method, sorted])}`;
}
