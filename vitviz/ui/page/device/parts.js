// The parts of the page that it does not begin with, such as the weights: blocks of text after it, or files beside it.

import { fromBase64 } from "../packs.js";

const UNREACHABLE = "The weights cannot be fetched: is there a connection?";

export class Parts {
  /** @param {string} folder where files are, with a slash at its end */
  constructor(folder) {
    this.folder = folder;
  }

  /**
   * The bytes of a part; one whose name ends in .gz is decompressed.
   * @param {string} name
   * @param {(done: number, total: number) => void=} onBytes is called while a file arrives
   * @returns {Promise<Uint8Array<ArrayBuffer>>}
   */
  async read(name, onBytes) {
    const block = document.getElementById(`part-${name}`);
    const bytes = block ? fromBase64(block.textContent ?? "") : await this.fetch(name, onBytes);
    if (!name.endsWith(".gz")) return bytes;
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Uint8Array(await new Response(stream).arrayBuffer());
  }

  /** @param {string} name */
  async text(name) {
    return new TextDecoder().decode(await this.read(name));
  }

  /**
   * @param {string} name
   * @param {((done: number, total: number) => void) | undefined} onBytes
   */
  async fetch(name, onBytes) {
    const response = await fetch(this.folder + name).catch(() => { throw Object.assign(Error(UNREACHABLE), { isPassing: true }); });
    if (!response.ok || !response.body) throw Error(`${name}: the server of this page answers ${response.status}`);
    const total = Number(response.headers.get("content-length")), reader = response.body.getReader();
    /** @type {Uint8Array<ArrayBuffer>[]} */
    const chunks = [];
    let done = 0;
    for (let chunk = await reader.read(); !chunk.done; chunk = await reader.read()) {
      chunks.push(chunk.value);
      done += chunk.value.length;
      // Of what the server compresses, the length is another one.
      if (total >= done) onBytes?.(done, total);
    }
    return new Uint8Array(await new Blob(chunks).arrayBuffer());
  }
}

/**
 * Words of two bytes, of which the part has all high bytes before the low ones, since they compress better so.
 * @param {Uint8Array} bytes
 */
export function joinedWords(bytes) {
  const count = bytes.length / 2, words = new Uint16Array(count);
  for (let index = 0; index < count; index++) words[index] = (bytes[index] << 8) | bytes[count + index];
  return words.buffer;
}
