// Files of the server: safetensors, as `vitviz/ui/packs.py` describes them.

// The files of one analysis that are in memory together.
const MAX_HELD_BYTES = 256 * 2 ** 20;
const AT_ONCE = 2;

/** The bytes of a file inside of a text. */
const fromBase64 = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));

/** Every float16 by its sixteen bits. */
function halfTable() {
  const table = new Float32Array(65536);
  for (let bits = 0; bits < 65536; bits++) {
    const sign = bits & 0x8000 ? -1 : 1, exponent = (bits >> 10) & 31, fraction = bits & 1023;
    if (exponent === 31) table[bits] = fraction ? NaN : sign * Infinity;
    else if (exponent === 0) table[bits] = sign * fraction * 2 ** -24;
    else table[bits] = sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
  }
  return table;
}

const HALVES = halfTable();

function fromHalves(halves) {
  const values = new Float32Array(halves.length);
  for (let index = 0; index < values.length; index++) values[index] = HALVES[halves[index]];
  return values;
}

/** The tensors of one file by name, each a Float32Array with its shape beside it. */
function readPack(buffer) {
  const length = Number(new DataView(buffer).getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, length)));
  const { __metadata__: about = {}, ...described } = header, tensors = {};
  for (const [name, { dtype, shape, data_offsets: [start, end] }] of Object.entries(described)) {
    const place = 8 + length + start;
    // A copy, as a view would keep the whole file in memory.
    if (dtype === "F32") tensors[name] = new Float32Array(buffer.slice(place, place + end - start));
    else if (dtype === "F16") tensors[name] = fromHalves(new Uint16Array(buffer, place, (end - start) / 2));
    else throw Error(`${name}: no tensor of ${dtype} can be read`);
    tensors[name].shape = shape;
  }
  // Not among the tensors when they are counted.
  Object.defineProperty(tensors, "about", { value: about });
  return tensors;
}

/**
 * The files of one analysis: those that are wanted first are fetched first, and what does not fit into memory goes,
 * the least wanted first.
 */
class Packs {
  /**
   * @param fetchFile name to a promise of an ArrayBuffer
   * @param changed is called when a file has come, or could not be had, with the error
   * @param mostBytes of all tensors that are held; a single file may be larger
   */
  constructor(fetchFile, changed, mostBytes = MAX_HELD_BYTES) {
    Object.assign(this, { fetchFile, changed, mostBytes, held: new Map(), loading: new Set(), wanted: [], bytes: 0, closed: false });
    // Of every file that has ever come: what does not fit is not fetched again to find that out.
    this.sizes = new Map();
    this.failed = new Map();
  }

  get(name) {
    return this.held.get(name)?.tensors;
  }

  /** Why a file that is wanted could not be had, the most wanted first; undefined where all are there or on their way. */
  get failure() {
    return this.failed.get(this.wanted.find((name) => this.failed.has(name)));
  }

  /** Names of files, the most wanted first; one that could not be had is asked for again when it is wanted anew. */
  want(names) {
    for (const name of this.failed.keys()) if (!names.includes(name)) this.failed.delete(name);
    this.wanted = names;
    this.fill();
  }

  close() {
    this.closed = true;
    this.held.clear();
  }

  /** Ask again for what could not be had. */
  retry() {
    this.failed.clear();
    this.fill();
  }

  fill() {
    while (!this.closed && this.loading.size < AT_ONCE) {
      const place = this.wanted.findIndex((name) => !this.held.has(name) && !this.loading.has(name) && !this.failed.has(name));
      if (place < 0 || !this.fits(place)) return;
      this.load(this.wanted[place]);
    }
  }

  /** Whether the file at a place of the list fits into memory together with all that are wanted more. */
  fits(place) {
    const largest = Math.max(0, ...this.sizes.values());
    const together = this.wanted.slice(0, place + 1).reduce((sum, name) => sum + (this.sizes.get(name) ?? largest), 0);
    return place === 0 || together <= this.mostBytes;
  }

  async load(name) {
    this.loading.add(name);
    this.failed.delete(name);
    try {
      const tensors = readPack(await this.fetchFile(name));
      if (this.closed) return;
      const bytes = Object.values(tensors).reduce((sum, tensor) => sum + tensor.byteLength, 0);
      this.held.set(name, { tensors, bytes });
      this.sizes.set(name, bytes);
      this.bytes += bytes;
      this.drop();
      this.loading.delete(name);
      this.changed(name, null);
      this.fill();
    } catch (error) {
      this.loading.delete(name);
      if (this.closed) return;
      // Nobody needs it any more.
      if (error.replaced) return this.fill();
      this.failed.set(name, error);
      this.changed(name, error);
    }
  }

  drop() {
    const rank = (name) => (this.wanted.includes(name) ? this.wanted.indexOf(name) : Infinity);
    const leaving = [...this.held.keys()].sort((one, other) => rank(other) - rank(one));
    while (this.bytes > this.mostBytes && this.held.size > 1) {
      const name = leaving.shift();
      this.bytes -= this.held.get(name).bytes;
      this.held.delete(name);
    }
  }
}
