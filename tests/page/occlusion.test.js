// The order of occlusion, and the map while it is made.

import assert from "node:assert/strict";
import { test } from "node:test";

import { spreadOrder, withNearest } from "../../vitviz/ui/page/device/occlusion.js";
import { writeMap } from "../../vitviz/ui/page/device/pack_writer.js";
import { readPack } from "../../vitviz/ui/page/packs.js";

test("every square is measured once, and those of coarser grids come first", () => {
  for (const [rows, columns] of [[14, 14], [37, 37], [6, 10], [1, 5], [1, 1]]) {
    const { order, coarse } = spreadOrder({ rows, columns }), count = rows * columns;
    assert.deepEqual([...order].sort((one, other) => one - other), [...Array(count).keys()]);
    // The farthest that a square is from one that is measured, after the first grid and after four times as many.
    const farthest = (known) => Math.max(...[...Array(count).keys()].map((patch) => Math.min(...known.map((other) =>
      Math.max(Math.abs(Math.floor(patch / columns) - Math.floor(other / columns)), Math.abs((patch % columns) - (other % columns)))))));
    assert.ok(coarse <= 36 || Math.min(rows, columns) < 3, `${rows}×${columns}: ${coarse}`);
    if (coarse < count) assert.ok(farthest(order.slice(0, 5 * coarse)) < farthest(order.slice(0, coarse)));
  }
  assert.deepEqual(spreadOrder({ rows: 14, columns: 14 }).order.slice(0, 5), [0, 4, 8, 12, 56]);
});

test("a square that is not measured yet has the value of the nearest", () => {
  const values = Float32Array.of(1, NaN, NaN, 2, NaN, NaN, NaN, NaN, 3, NaN, NaN, NaN);
  assert.deepEqual([...withNearest(values, 4)], [1, 1, 2, 2, 1, 1, 2, 2, 3, 3, 3, 2]);
});

test("of squares that are not measured yet, the caption says nothing", () => {
  const content = { values: Float32Array.of(NaN, 0, 0), description: "Occlusion", quantity: "fall" }, shape = { prefix: ["CLS"], columns: 2 };
  const captionOf = (more) => readPack(writeMap({ ...content, ...more }, shape)).metadata.description;
  assert.equal(captionOf({ raised: false }), "Occlusion. Every patch is 0: by this method, nothing raises this score");
  const unfinished = "Unfinished: 1 of 2 squares measured, and the others as the nearest of them";
  assert.equal(captionOf({ unfinished: "1 of 2 squares" }), `Occlusion. ${unfinished}`);
});
