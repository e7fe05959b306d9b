// A figure for a paper: where its parts lie, and what it is written as.

import assert from "node:assert/strict";
import { test } from "node:test";
import { deflateSync } from "node:zlib";

import { figureAsSvg, figureLayout, linesOf, picturePdf } from "../../vitviz/ui/page/figure_layout.js";

const measure = (text) => 7 * text.length;
const picture = async () => null;
const panel = (ratio) => ({
  badge: "model · layer 4", caption: "word ".repeat(40).trim(), ratio,
  legend: { low: "0", high: "0.2 ►", quantity: "attention weight", bar: picture },
  parts: (width) => [{ x: 0, y: 0, width, height: width * ratio, picture }],
});
const all = { badge: true, legend: true, caption: true }, none = { badge: false, legend: false, caption: false };

test("a text is broken between words, and a longer word stands alone", () => {
  assert.deepEqual(linesOf("aa bbb cccccccc d", 42, measure), ["aa bbb", "cccccccc", "d"]);
  assert.deepEqual(linesOf("", 42, measure), []);
});

test("one panel without texts is its picture, several have letters", () => {
  const { items, width, height } = figureLayout([panel(0.5)], none, measure);
  assert.deepEqual(items.map(({ text }) => text), [undefined]);
  assert.ok(width > items[0].width && height > items[0].height);
  const letters = figureLayout([1, 1, 1, 1].map(panel), none, measure).items.filter(({ text }) => text);
  assert.deepEqual(letters.map(({ text, isBold }) => [text, isBold]), [["a", true], ["b", true], ["c", true], ["d", true]]);
  // Four lie in two rows of two.
  assert.deepEqual([0, 1, 2, 3].map((index) => letters[index].x === letters[index % 2].x), [true, true, true, true]);
  assert.ok(letters[2].y > letters[0].y && letters[1].y === letters[0].y);
});

test("nothing leaves the figure, and rows of unequal panels do not overlap", () => {
  const { items, width, height } = figureLayout([0.2, 1.5, 1, 0.7, 0.7].map(panel), all, measure);
  for (const item of items) {
    assert.ok(item.x >= 0 && item.x + (item.width ?? measure(item.text)) <= width, JSON.stringify(item));
    assert.ok(item.y >= 0 && item.y + (item.height ?? 0) <= height);
  }
  const pictures = items.filter(({ picture, isPixelated }) => picture && !isPixelated);
  const bottom = Math.max(...pictures.slice(0, 3).map(({ y, height }) => y + height));
  assert.ok(pictures.slice(3).every(({ y }) => y > bottom));
});

test("a long name of a quantity stands below the colours", () => {
  const wide = { ...panel(0.5), legend: { low: "0", high: "1", quantity: "a quantity ".repeat(12), bar: picture } };
  const { items } = figureLayout([wide], { ...none, legend: true }, measure);
  const bar = items.find(({ isPixelated }) => isPixelated), quantity = items.filter(({ text }) => text?.includes("quantity"));
  assert.ok(quantity.length > 1 && quantity.every(({ y }) => y > bar.y + 10));
});

test("an SVG file escapes its texts", () => {
  const drawing = figureAsSvg(figureLayout([{ ...panel(1), badge: "<b> & c" }], all, measure), () => "data:,", "<b> & c");
  assert.match(drawing, /<title>&lt;b> &amp; c<\/title>/);
  assert.match(drawing, />&lt;b> &amp; c<\/text>/);
  assert.doesNotMatch(drawing, /<b>/);
});

test("the table of a PDF file has the place of every object", async () => {
  const deflated = new Uint8Array(deflateSync(Uint8Array.of(1, 2, 3, 4, 5, 6)));
  const bytes = Buffer.from(await picturePdf(deflated, [2, 1], [72, 36]).arrayBuffer()), text = bytes.toString("latin1");
  const places = [...text.matchAll(/^(\d{10}) 00000 n $/gm)].map(([, place]) => Number(place));
  assert.equal(places.length, 5);
  places.forEach((place, index) => assert.ok(text.slice(place).startsWith(`${index + 1} 0 obj\n`)));
  const start = Number(/startxref\n(\d+)/.exec(text)[1]);
  assert.ok(text.slice(start).startsWith("xref\n"));
  assert.ok(bytes.includes(Buffer.from(deflated)) && text.includes(`/Length ${deflated.length} `));
});
