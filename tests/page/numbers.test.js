import assert from "node:assert/strict";
import { test } from "node:test";

import { differenceOfMaps } from "../../vitviz/ui/page/numbers.js";

test("maps of one grid are subtracted whatever their other tokens are", () => {
  const plain = Float32Array.of(0.5, 1, 2), registers = Float32Array.of(0.25, 9, 0.5, 3);
  assert.deepEqual([...differenceOfMaps(plain, registers, ["cls"], ["cls", "register 1"])], [0.25, 0.5, -1]);
  assert.deepEqual([...differenceOfMaps(registers, plain, ["cls", "register 1"], ["cls"])], [-0.25, NaN, -0.5, 1]);
  assert.deepEqual([...differenceOfMaps(Float32Array.of(1, 2), plain, [], ["cls"])], [0, 0]);
});
