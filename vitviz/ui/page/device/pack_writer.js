// Files of tensors in the format of safetensors, which packs.js reads.

import { digits } from "../numbers.js";
import { longNameOf, queryOf } from "../token_names.js";

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
 * A map, "token" and NaN for tokens without a value. `raised` is false if nothing raises the score that it is about; `self` is the patch
 * with which it begins, whose value has an identity term; `unfinished` says how far it is, where patches still have the value of another.
 * @typedef {{ values: Float32Array, description: string, quantity: string, raised?: boolean, signed?: boolean, self?: number,
 *   unfinished?: string }} MapContent
 */

/**
 * What captions say of values below zero, as vitviz/attribution/pixels.py.
 * @param {boolean} signed
 */
export const signText = (signed) => `negative values ${signed ? "lower the score" : "are left out"}`;

/**
 * The file of a map, as `map_file` of vitviz/ui/packs.py writes it; its description says what is empty about it.
 * @param {MapContent} map
 * @param {{ prefix: string[], columns: number }} shape of its tokens
 */
export function writeMap({ values, description, quantity, raised = true, signed, self, unfinished }, shape) {
  const patches = values.subarray(shape.prefix.length);
  const isFlat = !unfinished && patches.length > 1 && patches.every((value) => value === patches[0]);
  const value = isFlat ? `Every patch is ${digits(patches[0])}` : "", reason = "by this method, nothing raises this score";
  const remark = raised ? value : value ? `${value}: ${reason}` : reason.replace("by", "By");
  const own = self === undefined ? ""
    : `; ${longNameOf(queryOf(self, shape))} itself is excluded from the colour range (residual identity)`;
  const rest = unfinished ? `. Unfinished: ${unfinished} measured, and the others as the nearest of them` : "";
  const text = `${description}${remark && `. ${remark}`}${own}${rest}`;
  const metadata = { description: text, quantity, ...(signed && { signed: "true" }), ...(unfinished && { unfinished }) };
  return writePack({ values: { values, shape: [values.length] } }, self === undefined ? metadata : { ...metadata, self: String(self) });
}
