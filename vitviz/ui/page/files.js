// Files made in the page.

import { create, findAll } from "./dom.js";
import { range } from "./numbers.js";
import { compressed } from "./packs.js";
import { tokenOf, valueOf } from "./tokens.js";

/**
 * Offer bytes or text as a file, and say so beside every button that does.
 * @param {BlobPart} content
 * @param {string} name
 * @param {string=} type
 */
export function saveFile(content, name, type) {
  const address = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
  create("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
  const from = document.activeElement?.closest(".vx-panel, .vx-menu-of, dialog");
  for (const place of findAll(".vx-saved")) if (!from || from.contains(place)) place.textContent = `Saved ${name}.`;
}

/**
 * Bytes as a file of NumPy's format, version 1.0.
 * @param {any} descr
 * @param {any} shape
 * @param {Uint8Array} bytes
 */
function npyFile(descr, shape, bytes) {
  const tuple = `(${shape.join(", ")}${shape.length === 1 ? "," : ""})`;
  let header = `{'descr': '${descr}', 'fortran_order': False, 'shape': ${tuple}, }`;
  header += " ".repeat(63 - (10 + header.length) % 64) + "\n";
  const file = new Uint8Array(10 + header.length + bytes.length);
  file.set([0x93, 78, 85, 77, 80, 89, 1, 0, header.length & 255, header.length >> 8]);
  file.set(new TextEncoder().encode(header), 10);
  file.set(bytes, 10 + header.length);
  return file;
}

/**
 * @param {ArrayLike<number>} values
 * @param {number[]} shape
 */
export const asNpy = (values, shape) => npyFile("<f4", shape, new Uint8Array(Float32Array.from(values).buffer));

/**
 * A text as a file of NumPy's format: `numpy.load(…)["about"].item()` is the text in UTF-8.
 * @param {string} text
 */
export function asNpyText(text) {
  const bytes = new TextEncoder().encode(text);
  return npyFile(`|S${bytes.length}`, [], bytes);
}

/**
 * Files by name as a ZIP archive; of files in NumPy's format, this is an NPZ file.
 * @param {Record<string, Uint8Array<ArrayBuffer>>} files
 */
export async function asZip(files) {
  const contents = /** @type {Uint8Array<ArrayBuffer>[]} */ ([]), directory = /** @type {Uint8Array<ArrayBuffer>[]} */ ([]);
  const lengthOf = (/** @type {Uint8Array[]} */ parts) => parts.reduce((sum, part) => sum + part.length, 0);
  for (const [name, bytes] of Object.entries(files)) {
    // A header of ten bytes, the deflated content, its checksum, and the length of what it was.
    const gzip = await compressed(bytes, "gzip"), content = gzip.slice(10, -8), title = new TextEncoder().encode(name);
    // Version, flags, method, time and date (1980-01-01), checksum, both sizes, lengths of the name and the extra field.
    const sizes = [...gzip.slice(-8, -4), ...four(content.length), ...gzip.slice(-4)];
    const common = [...[20, 0, 8, 0, 33].flatMap(two), ...sizes, ...two(title.length), ...two(0)];
    const rest = [...[0, 0, 0].flatMap(two), ...four(0), ...four(lengthOf(contents))];
    directory.push(Uint8Array.from([80, 75, 1, 2, ...two(20), ...common, ...rest, ...title]));
    contents.push(Uint8Array.from([80, 75, 3, 4, ...common, ...title]), content);
  }
  const counts = [0, 0, directory.length, directory.length].flatMap(two);
  const end = Uint8Array.from([80, 75, 5, 6, ...counts, ...four(lengthOf(directory)), ...four(lengthOf(contents)), ...two(0)]);
  return new Blob([...contents, ...directory, end], { type: "application/zip" });
}

/** @param {number} value */
const two = (value) => [value & 255, (value >> 8) & 255];

/** @param {number} value */
const four = (value) => [...two(value), ...two(value >>> 16)];

/**
 * A token's attention in every layer and head that is loaded, the shown map, and their metadata (JSON), as NPZ.
 * @param {Pane} pane
 * @param {Query} query
 * @param {any} metadata
 */
export function numbersOf(pane, query, metadata) {
  const { attention, facts, view } = pane, direction = valueOf(view, "direction", facts) ?? "row";
  const token = tokenOf(query, facts, pane.model) ?? facts.start;
  const layers = range(facts.layers).filter((layer) => attention.map(layer, 0, token, direction));
  const all = layers.flatMap((layer) => range(facts.heads).flatMap((head) => [...attention.map(layer, head, token, direction) ?? []]));
  const values = /** @type {Float32Array} */ (pane.values(query));
  return asZip({
    "attention.npy": asNpy(all, [layers.length, facts.heads, attention.tokens]),
    "layers.npy": asNpy(layers, [layers.length]),
    "map.npy": asNpy(values.subarray(attention.prefix), [facts.rows, facts.columns]),
    "prefix.npy": asNpy(values.subarray(0, attention.prefix), [attention.prefix]),
    "about.npy": asNpyText(JSON.stringify(metadata)),
  });
}

/** @param {HTMLCanvasElement} canvas */
export async function asPng(canvas) {
  const blob = await new Promise((done) => canvas.toBlob(done));
  if (!blob) throw Error(`${canvas.width} × ${canvas.height} pixels are more than this browser can save`);
  return blob;
}

/**
 * The file name of an analysis's picture without its suffix.
 * @param {Facts} facts
 */
export const stemOf = (facts) => facts.name.replace(/\.[^.]*$/, "") || "picture";

/**
 * The analysis of a pane, as JSON in a saved file.
 * @param {any} options
 */
export const metadataOf = ({ facts, model }) => ({
  made_by: "vitviz", model: model.name, step: facts.step, picture: facts.name, fit: facts.fit, resolution: facts.resolution,
  prefix: facts.prefix, grid: [facts.rows, facts.columns],
});
