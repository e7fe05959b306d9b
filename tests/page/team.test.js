// Passes of a team, whose workers here answer at once or never.

import assert from "node:assert/strict";
import { getEventListeners } from "node:events";
import { test } from "node:test";

import { inLanes } from "../../vitviz/ui/page/device/studies.js";
import { Team } from "../../vitviz/ui/page/device/team.js";

/** @param {boolean} answers */
function teamOf(answers) {
  const worker = /** @type {any} */ ({ terminate() {}, postMessage: (/** @type {any} */ { kind, pass }) => {
    if (answers && kind !== "cancel") queueMicrotask(() => team.receive(worker, { kind: "answer", pass, answer: /** @type {any} */ ({}) }));
  } });
  const team = new Team([worker], /** @type {any} */ ({ config: { depth: 1 } }));
  return team;
}

test("a signal forgets the passes that ended, and their pictures with them", async () => {
  const { signal } = new AbortController(), pixels = new Float32Array(3);
  await teamOf(true).encode(pixels, { signal });
  assert.equal(getEventListeners(signal, "abort").length, 0);
  const team = teamOf(false), waiting = team.encode(pixels, { signal });
  assert.equal(getEventListeners(signal, "abort").length, 1);
  team.close();
  await assert.rejects(waiting, /The network was closed/);
  assert.equal(getEventListeners(signal, "abort").length, 0);
});

test("a pass that fails ends all that are not begun", async () => {
  const begun = /** @type {number[]} */ ([]);
  const lanes = inLanes(2, 9, async (index) => {
    begun.push(index);
    if (index === 2) throw Error("too large");
    await new Promise((resolve) => setImmediate(resolve));
  }, () => {});
  await assert.rejects(lanes, /too large/);
  for (let times = 0; times < 20; times++) await new Promise((resolve) => setImmediate(resolve));
  assert.deepEqual(begun, [0, 1, 2, 3].slice(0, begun.length));
});
