// A figure for a paper: where its parts lie, and what it is written as.

import assert from "node:assert/strict";
import { test } from "node:test";

globalThis.HTMLCanvasElement = class {};
globalThis.document = { getElementById: () => ({ querySelector: () => null }) };
const { figureLayout, linesOf } = await import("../../vitviz/ui/page/figure_layout.js");
const { Recorder, vectorSvg } = await import("../../vitviz/ui/page/vector.js");

const measure = (text) => 7 * text.length;
const picture = () => null, bar = () => null;
const panel = (ratio) => ({
  badge: "model · layer 4", caption: "word ".repeat(40).trim(), ratio,
  legend: { low: "0", high: "0.2 ►", quantity: "attention weight", bar }, draw: picture,
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
  const pictures = items.filter(({ draw }) => draw === picture);
  const bottom = Math.max(...pictures.slice(0, 3).map(({ y, height }) => y + height));
  assert.ok(pictures.slice(3).every(({ y }) => y > bottom));
});

test("a long name of a quantity stands below the colours", () => {
  const wide = { ...panel(0.5), legend: { low: "0", high: "1", quantity: "a quantity ".repeat(12), bar } };
  const { items } = figureLayout([wide], { ...none, legend: true }, measure);
  const colours = items.find(({ draw }) => draw === bar), quantity = items.filter(({ text }) => text?.includes("quantity"));
  assert.ok(quantity.length > 1 && quantity.every(({ y }) => y > colours.y + 10));
});

/** A line, a dimmed frame and a text, moved by 10. */
function recorded(text) {
  const context = new Recorder();
  context.save();
  context.translate(10, 20);
  Object.assign(context, { strokeStyle: "#ffd43b", fillStyle: "rgba(0, 0, 0, 0.65)", lineWidth: 2, font: "bold 12px serif" });
  context.beginPath();
  context.rect(0, 0, 5, 5);
  context.clip();
  context.beginPath();
  context.moveTo(0, 0);
  context.lineTo(1.2345, 2);
  context.quadraticCurveTo(1, 2, 3, 4);
  context.stroke();
  context.fillText(text, 1, 2);
  context.restore();
  context.fillRect(0, 0, 3, 4);
  return context;
}

test("an SVG file has lines, texts and what is cut off, in their places, and escapes texts", () => {
  const drawing = vectorSvg(recorded("<b> & c"), 100, 50, "<b> & c");
  assert.match(drawing, /<title>&lt;b> &amp; c<\/title>/);
  assert.match(drawing, /<path[^>]*stroke="rgb\(255,212,59\)" stroke-width="2" clip-path="url\(#clip0\)" d="M10 20L11.23 22Q11 22 13 24"\/>/);
  assert.match(drawing, /<text[^>]*fill="rgb\(0,0,0\)"[^>]*fill-opacity="0.65"[^>]*x="11" y="22"[^>]*font-weight="bold">&lt;b> &amp; c<\/text>/);
  // After what was restored, nothing is cut off, and the colour is the one before.
  assert.match(drawing, /<path fill="rgb\(0,0,0\)" stroke="none" d="M0 0L3 0L3 4L0 4L0 0"\/>/);
  assert.doesNotMatch(drawing, /<b>/);
});
