// The order of occlusion, and the map while it is made.

import assert from "node:assert/strict";
import { test } from "node:test";

import { occlusionMap, spreadOrder, withNearest } from "../../vitviz/ui/page/device/occlusion.js";
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

test("nothing is shown before all of the first grid is measured, in whatever order passes end", async () => {
  const input = { rows: 8, columns: 8, prefix: [] }, config = { channels: 1, patch_height: 1, patch_width: 1 };
  const { coarse } = spreadOrder(input), shown = [], slow = Promise.withResolvers();
  let passes = 0;
  const encode = async () => {
    if (++passes === 2) await slow.promise;
    return { logits: 0 };
  };
  const report = (done, _, content) => {
    if (content) shown.push(done);
    if (done === 2 * coarse) slow.resolve();
  };
  const studied = { network: { team: { encode }, workers: 2, file: { config, input } }, pixels: new Float32Array(64), logits: 1 };
  await occlusionMap({ studied, name: "dog", target: { score: (logits) => logits }, parameters: { signed: false }, report });
  assert.ok(shown[0] > 2 * coarse && shown.at(-1) === 64, String(shown));
});

test("of squares that are not measured yet, the caption says nothing", () => {
  const content = { values: Float32Array.of(NaN, 0, 0), description: "Occlusion", quantity: "fall" }, shape = { prefix: ["CLS"], columns: 2 };
  const captionOf = (more) => readPack(writeMap({ ...content, ...more }, shape)).metadata.description;
  assert.equal(captionOf({ raised: false }), "Occlusion. Every patch is 0: by this method, nothing raises this score");
  const unfinished = "Unfinished: 1 of 2 squares measured, and the others as the nearest of them";
  assert.equal(captionOf({ unfinished: "1 of 2 squares" }), `Occlusion. ${unfinished}`);
});
