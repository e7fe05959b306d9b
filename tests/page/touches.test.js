// Whether an event is the visitor's own.

import assert from "node:assert/strict";
import { test } from "node:test";

import { isTouch, onTouch, wordsOfFinger } from "../../vitviz/ui/page/touches.js";

/**
 * @param {number} x on the screen
 * @param {number=} movement
 */
const move = (x, movement = 0) => Object.assign(new Event("pointermove"), { screenX: x, screenY: 5, movementX: movement, movementY: 0 });

test("a pointer that rests while the page appears under it touches nothing", () => {
  let count = 0;
  const page = new EventTarget();
  const told = (/** @type {Event} */ event) => {
    const before = count;
    page.dispatchEvent(event);
    return count - before;
  };
  onTouch(page, () => { count += 1; });
  assert.deepEqual([move(40), move(40), move(40)].map(told), [0, 0, 0]);
  // It moves, and rests again; where it moved, every listener is told so.
  const moved = move(41);
  assert.deepEqual([told(moved), isTouch(moved), told(move(41)), told(move(41, 1))], [1, true, 0, 1]);
  assert.deepEqual(["pointerdown", "keydown", "wheel"].map((type) => told(new Event(type))), [1, 1, 1]);
});

test("who has no pointer is asked to touch", () => {
  const texts = ["Point at a square. A click shows it.", "Point anywhere; click the map.", "The square you point at asks.", "“click beetle”"];
  const touched = ["Touch a square. A tap shows it.", "Touch anywhere; tap the map.", "The square you touch asks.", "“click beetle”"];
  assert.deepEqual(texts.map((text) => wordsOfFinger(text, true)), touched);
  assert.deepEqual(texts.map((text) => wordsOfFinger(text, false)), texts);
});
