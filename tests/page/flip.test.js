// The search for squares that change the answer, with a network of one layer of additions.

import assert from "node:assert/strict";
import { test } from "node:test";

import { foundFlip } from "../../vitviz/ui/page/device/flip.js";

const SIDE = 8, NEEDED = 5, MARGIN = 0.1;

/**
 * A network whose first class loses so much for each of the patches 3, 11, 19 …, and its search.
 * @param {(pass: number) => void} onPass
 * @param {AbortSignal} signal
 */
function studiedOf(onPass, signal) {
  let passes = 0;
  const logitsOf = (/** @type {number[]} */ hidden) =>
    new Float32Array([10 * (NEEDED - 0.5 - hidden.filter((patch) => patch % SIDE === 3).length), 0]);
  const team = {
    async encode(/** @type {any} */ pixels, /** @type {any} */ { hiddenPatches, signal: own }) {
      await new Promise((resolve) => setImmediate(resolve));
      own.throwIfAborted();
      onPass(++passes);
      return { logits: logitsOf(hiddenPatches ?? []) };
    },
    // Every second of the patches that count comes late, after many that do not.
    async differentiate(/** @type {any} */ pixels, /** @type {any} */ target, /** @type {any} */ { hiddenPatches }) {
      const remaining = [...Array(SIDE * SIDE).keys()].filter((patch) => !hiddenPatches.includes(patch));
      return { products: Float32Array.from([0, ...remaining], (patch, place) => (place && patch % 16 === 3 ? 100 : 0) - patch) };
    },
  };
  const file = { config: { classes: 2, probability: "softmax" }, input: { rows: SIDE, columns: SIDE, prefix: ["cls"] } };
  return /** @type {any} */ ({
    network: { team, file, workers: 2 }, labels: ["a", "b"], pixels: null, logits: logitsOf([]), signal,
  });
}

test("it covers what the answer needs, gives back what it does not, and says how far it is", async () => {
  const steps = /** @type {number[][]} */ ([]), { signal } = new AbortController();
  const found = await foundFlip(studiedOf(() => {}, signal), (done, total) => steps.push([done, total]));
  assert.equal(found.patches.length, NEEDED);
  assert.ok(found.patches.every(([, column]) => column === 3));
  assert.equal(found.after.index, 1);
  assert.ok(found.after.probability > 0.5 + MARGIN / 2);
  assert.ok(steps.every(([done, total], index) => total === SIDE * SIDE && (!index || done > steps[index - 1][0])));
});

test("a search that is ended runs no further pass", async () => {
  const controller = new AbortController(), passes = /** @type {number[]} */ ([]);
  const search = foundFlip(studiedOf((pass) => {
    passes.push(pass);
    if (pass === 6) controller.abort(Error("Stopped"));
  }, controller.signal), () => {});
  await assert.rejects(search, /Stopped/);
  for (let times = 0; times < 20; times++) await new Promise((resolve) => setImmediate(resolve));
  assert.equal(passes.length, 6);
});
