// Memory of the kernels: taken once, grown where a backward pass needs it, and refused in a sentence.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { openKernels } from "../../vitviz/ui/page/device/kernels.js";

const [simd, relaxed] = ["kernels.wasm", "kernels-relaxed.wasm"]
  .map((name) => readFileSync(new URL(`../../vitviz/ui/page/device/${name}`, import.meta.url)));

for (const [name, wasm] of Object.entries({ simd: { simd }, relaxed: { relaxed } })) {
  test(`${name}: memory that grows keeps what is in it`, () => {
    const kernels = openKernels(wasm);
    assert.equal(kernels.kind, name);
    kernels.reserve(1000);
    const first = kernels.take(64);
    kernels.floats(first, 4).set([1, 2, 3, 4]);
    kernels.extend(1e6);
    const second = kernels.take(5e5);
    kernels.floats(second, 4).set([1, -1, 0, 2]);
    kernels.run.multiply(second, first, 4);
    assert.deepEqual([...kernels.floats(first, 4), ...kernels.floats(second, 4)], [1, 2, 3, 4, 1, -2, 0, 8]);
    assert.throws(() => kernels.take(1e7), /were reserved/);
  });

  test(`${name}: too little memory is said`, () => {
    assert.throws(() => openKernels(wasm).reserve(1e12), /takes 1000000 MB of memory, more than this browser gives/);
  });
}

test("binaries that this browser cannot compile are passed over", () => {
  assert.equal(openKernels({ relaxed: new Uint8Array([0, 97, 115, 109, 2, 0, 0, 0]), simd }).kind, "simd");
  assert.throws(() => openKernels({ simd: new Uint8Array(3) }), /This browser forbids WebAssembly/);
});

for (const [name, wasm] of Object.entries({ relaxed: { relaxed }, simd: { simd } }))
  for (const place of [0, 1, 4])
    test(`${name}: a score that is no number leaves no weight that is one, at key ${place}`, () => {
      const kernels = openKernels(wasm), keys = 5;
      assert.equal(kernels.kind, name);
      kernels.reserve(1000);
      const [query, key, values, out, sums, scores] = [1, keys, keys, 1, 2, 8].map((count) => kernels.take(4 * (count + 8)));
      kernels.floats(query, 1).set([1]);
      kernels.floats(key, keys).set([3, 1, 2, 0, 1].map((score, index) => (index === place ? NaN : score)));
      kernels.floats(values, keys).fill(1);
      kernels.run.attend(query, key, values, out, 1, sums, scores, 1, keys, 1, 1, 1);
      assert.deepEqual([...kernels.floats(scores, keys), ...kernels.floats(out, 1)], Array(keys + 1).fill(NaN));
    });
