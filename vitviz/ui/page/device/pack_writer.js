// Files of tensors in the format of safetensors, which packs.js reads.

import { digits } from "../numbers.js";

/**
 * A file of tensors of 32 bits.
 * @param {Record<string, { values: Float32Array, shape: number[] }>} tensors by name
 * @param {Record<string, string>=} metadata
 */
export function writePack(tensors, metadata = {}) {
  /** @type {Record<string, any>} */
  const header = { __metadata__: metadata };
  let offset = 0;
  for (const [name, { values, shape }] of Object.entries(tensors)) {
    header[name] = { dtype: "F32", shape, data_offsets: [offset, offset + values.byteLength] };
    offset += values.byteLength;
  }
  const encoded = new TextEncoder().encode(JSON.stringify(header)), length = 8 * Math.ceil(encoded.length / 8);
  const file = new Uint8Array(8 + length + offset).fill(32, 8, 8 + length);
  new DataView(file.buffer).setBigUint64(0, BigInt(length), true);
  file.set(encoded, 8);
  let place = 8 + length;
  for (const { values } of Object.values(tensors)) {
    file.set(new Uint8Array(values.buffer, values.byteOffset, values.byteLength), place);
    place += values.byteLength;
  }
  return file.buffer;
}

/**
 * The file of a map; its description says of one without any difference between patches that it has none.
 * @param {Float32Array} values "token"
 * @param {Record<string, string>} metadata
 * @param {number} prefix how many tokens are no patches
 * @param {string=} reason why all values are zero
 */
export function writeMap(values, metadata, prefix, reason = "") {
  const patches = values.subarray(prefix), isFlat = patches.length > 1 && patches.every((value) => value === patches[0]);
  const flat = isFlat ? `. Every patch is ${digits(patches[0])}${reason && patches[0] === 0 ? `: ${reason}` : ""}` : "";
  return writePack({ values: { values, shape: [values.length] } }, { ...metadata, description: metadata.description + flat });
}
