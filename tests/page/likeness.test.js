// Colours and cosines of the page against sums that are written out, on squares whose components are known.

import assert from "node:assert/strict";
import { test } from "node:test";

const { basisOf, coloursOf, cosines } = await import("../../vitviz/ui/page/likeness.js");

const pause = async () => {};
const range = (count) => [...Array(count).keys()];
const tensor = (rows) => Object.assign(Float32Array.from(rows.flat()), { shape: [rows.length, rows[0].length] });
const close = (found, expected, most) => assert.ok(Math.abs(found - expected) <= most, `${found} is not ${expected}`);

test("components are the axes along which squares differ most, with one sign and robust ends", async () => {
  // Independent along three axes of twelve, with the spreads 3, 2 and 1.
  const rows = range(400).map((index) => range(12).map((channel) => {
    if (channel === 7) return 3 * Math.sin(index);
    if (channel === 2) return -2 * Math.sin(2.1 * index + 1);
    return channel === 5 ? Math.sin(3.7 * index + 2) : 0.001 * Math.sin(index * (channel + 11));
  }));
  const { directions, share, ends } = await basisOf([{ vectors: tensor(rows.slice(0, 150)), inliers: range(150) },
    { vectors: tensor(rows.slice(150)), inliers: range(250) }], pause);
  [7, 2, 5].forEach((axis, index) => close(directions[index][axis], 1, 0.01));
  assert.ok(share > 0.999 && share <= 1);
  const sorted = rows.map((row) => row[7]).sort((a, b) => a - b);
  close(ends[0][1], sorted[395] + 0.01 * (sorted[396] - sorted[395]), 0.02);
});

test("outliers have no part in the basis, and a flat picture has one colour in the middle", async () => {
  const flat = range(5).map(() => [0.6, 0.8, 0, 0]), vectors = tensor([...flat, [0, 0, 1, 0]]);
  const basis = await basisOf([{ vectors, inliers: range(5) }], pause);
  close(basis.share, 0, 1e-6);
  const colours = coloursOf(tensor(flat), basis);
  for (const colour of colours) assert.deepEqual(colour, colours[0]);
  // OKLab 0.64 without a hue is grey.
  for (const level of colours[0]) close(level, 0.55, 0.02);
});

test("a cosine is that of two squares, of one picture or of two", () => {
  const one = tensor([[1, 0], [0.6, 0.8]]), other = tensor([[0, 1], [-1, 0], [0.8, 0.6]]);
  [0.8, -0.6, 0.96].forEach((expected, index) => close(cosines(other, one, 1)[index], expected, 1e-6));
  assert.deepEqual([...cosines(one, one, 0)].map((value) => Math.round(10 * value)), [10, 6]);
});
