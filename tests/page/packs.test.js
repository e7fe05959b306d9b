// Files of an analysis: read as they were written, and never more in memory than there is room.

import assert from "node:assert/strict";
import { test } from "node:test";

import { Packs, readPack } from "../../vitviz/ui/page/packs.js";

/** A file of tensors in the format of safetensors: `entries` has type, shape and bytes by name. */
function safetensors(entries, metadata = {}) {
  let offset = 0;
  const header = { __metadata__: metadata };
  for (const [name, { dtype, shape, bytes }] of Object.entries(entries)) {
    header[name] = { dtype, shape, data_offsets: [offset, offset + bytes.byteLength] };
    offset += bytes.byteLength;
  }
  const text = JSON.stringify(header), padded = text.padEnd(8 * Math.ceil(text.length / 8));
  const file = new Uint8Array(8 + padded.length + offset);
  new DataView(file.buffer).setBigUint64(0, BigInt(padded.length), true);
  file.set(new TextEncoder().encode(padded), 8);
  Object.values(entries).reduce((at, { bytes }) => (file.set(new Uint8Array(bytes.buffer), at), at + bytes.byteLength), 8 + padded.length);
  return file.buffer;
}

test("numbers of 16 and 32 bits are read with their shape and metadata", () => {
  const halves = new Uint16Array([0x0000, 0x3c00, 0xc000, 0x7bff, 0x0001, 0x7c00]);
  const tensors = readPack(safetensors({
    halves: { dtype: "F16", shape: [2, 3], bytes: halves }, singles: { dtype: "F32", shape: [2], bytes: new Float32Array([0.1, -7]) },
  }, { quantity: "weight" }));
  assert.deepEqual([...tensors.halves], [0, 1, -2, 65504, 2 ** -24, Infinity]);
  assert.deepEqual([tensors.halves.shape, [...tensors.singles], tensors.metadata], [[2, 3], [Math.fround(0.1), -7], { quantity: "weight" }]);
  assert.throws(() => readPack(safetensors({ x: { dtype: "I64", shape: [1], bytes: new Float64Array(1) } })), /no tensor of I64/);
});

test("files of any size never take more than the room, and none is fetched again for the same request", async () => {
  let seed = 1;
  const random = (count) => {
    seed = (seed * 1103515245 + 12345) % 2147483648;
    return Math.floor(seed / 2147483648 * count);
  };
  const names = Array.from({ length: 10 }, (_, layer) => `layer ${layer}`), room = 60 * 4;
  const sizes = Object.fromEntries(names.map((name) => [name, 1 + random(39)]));
  let fetched = [], isChanged = () => {};
  const fetchFile = async ({ name }) => {
    fetched.push(name);
    await null;
    return safetensors({ values: { dtype: "F32", shape: [sizes[name]], bytes: new Float32Array(sizes[name]) } });
  };
  const packs = new Packs(fetchFile, () => isChanged(), room);
  for (let times = 0; times < 30; times++) {
    const wanted = [...names].sort(() => random(2) - 0.5);
    fetched = [];
    packs.request(wanted.map((name) => ({ name })));
    while (packs.loading.size && fetched.length <= 100) await new Promise((done) => { isChanged = () => setImmediate(done); });
    assert.equal(new Set(fetched).size, fetched.length);
    const held = [...packs.loaded.keys()], sum = (some) => some.reduce((bytes, name) => bytes + 4 * sizes[name], 0);
    assert.ok(packs.bytes === sum(held) && packs.bytes <= room);
    // What comes first is there, with all that comes before it, once all sizes are known.
    if (packs.sizes.size === names.length) for (let count = 1; sum(wanted.slice(0, count)) <= room; count++) assert.ok(held.includes(wanted[count - 1]));
  }
});

test("a map that is not finished is there until the whole, or goes with its failure", async () => {
  const file = (value) => safetensors({ values: { dtype: "F32", shape: [1], bytes: Float32Array.of(value) } });
  for (const failure of [undefined, "Stopped"]) {
    const seen = [], packs = new Packs(async (_, onUnfinished) => {
      onUnfinished(file(0));
      onUnfinished(file(1));
      if (failure) throw Error(failure);
      return file(2);
    }, (name, error) => seen.push([packs.get(name)?.values[0], packs.bytes, error?.message]));
    packs.request([{ name: "map" }]);
    await new Promise((done) => setImmediate(done));
    assert.deepEqual(seen, [[0, 4, undefined], [1, 4, undefined], failure ? [undefined, 0, failure] : [2, 4, undefined]]);
  }
});
