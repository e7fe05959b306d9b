// Files of the server: safetensors, as wire.py beside this folder describes them.

// Of all files in memory together.
const MOST_BYTES = 256 * 2 ** 20;
const AT_ONCE = 2;

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
    if (dtype === "F32") tensors[name] = new Float32Array(buffer, place, (end - start) / 4);
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
   */
  constructor(fetchFile, changed) {
    Object.assign(this, { fetchFile, changed, held: new Map(), loading: new Set(), wanted: [], bytes: 0, closed: false });
  }

  get(name) {
    return this.held.get(name)?.tensors;
  }

  /** Names of files, the most wanted first. */
  want(names) {
    this.wanted = names;
    this.fill();
  }

  close() {
    this.closed = true;
    this.held.clear();
  }

  fill() {
    while (!this.closed && this.loading.size < AT_ONCE) {
      const place = this.wanted.findIndex((name) => !this.held.has(name) && !this.loading.has(name));
      if (place < 0 || !this.fits(place)) return;
      this.load(this.wanted[place]);
    }
  }

  /** Whether there is room for the file at a place of the list, or less wanted ones to make it. */
  fits(place) {
    const ahead = this.wanted.slice(0, place).reduce((sum, name) => sum + (this.held.get(name)?.bytes ?? 0), 0);
    const largest = Math.max(0, ...[...this.held.values()].map((file) => file.bytes));
    return place === 0 || ahead + largest <= MOST_BYTES;
  }

  async load(name) {
    this.loading.add(name);
    try {
      const tensors = readPack(await this.fetchFile(name));
      if (this.closed) return;
      const bytes = Object.values(tensors).reduce((sum, tensor) => sum + tensor.byteLength, 0);
      this.held.set(name, { tensors, bytes });
      this.bytes += bytes;
      this.drop();
      this.loading.delete(name);
      this.changed(name, null);
      this.fill();
    } catch (error) {
      this.loading.delete(name);
      if (!this.closed) this.changed(name, error);
    }
  }

  drop() {
    const rank = (name) => (this.wanted.includes(name) ? this.wanted.indexOf(name) : Infinity);
    const leaving = [...this.held.keys()].sort((one, other) => rank(other) - rank(one));
    while (this.bytes > MOST_BYTES && this.held.size > 1) {
      const name = leaving.shift();
      this.bytes -= this.held.get(name).bytes;
      this.held.delete(name);
    }
  }
}
