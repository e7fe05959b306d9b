// A run whose connection is refused, cut or broken is read on.

import assert from "node:assert/strict";
import { mock, test } from "node:test";
import { setImmediate } from "node:timers/promises";

import { ServerBackend } from "../../vitviz/ui/page/backend.js";

globalThis.location = { pathname: "/" };
const LINES = ['{"text": "Work', 'ing", "done": 1, "total": 3}\n', '{"reply": {"answer": "dör"}}\n'].map((text) => new TextEncoder().encode(text));

function respond(fate) {
  if (fate === "refused") throw TypeError("Failed to fetch");
  if (fate === "away") return new Response("", { status: 502 });
  if (fate === "many") return new Response('{"detail": "wait for them"}', { status: 429 });
  return new Response(new ReadableStream({ start(controller) {
    for (const line of LINES.slice(0, fate === "cut" ? 2 : 3)) controller.enqueue(line);
    if (fate === "broken") controller.error(TypeError("network error"));
    else controller.close();
  } }));
}

for (const [fates, expected] of [
  [["whole"], { answer: "dör" }],
  [["refused", "cut", "broken", "away", "whole"], { answer: "dör" }],
  [["many"], { failed: "wait for them", final: undefined }],
  [Array(9).fill("refused"), { failed: "The server does not answer" }],
]) test(`${fates.join(", ")}: ${expected.answer ?? expected.failed}`, async () => {
  const numbers = [], steps = [], remaining = [...fates];
  globalThis.fetch = async (_, { body }) => {
    numbers.push(JSON.parse(body).number);
    return respond(remaining.shift());
  };
  mock.timers.enable({ apis: ["setTimeout"] });
  let reply = null;
  new ServerBackend().run({ page: "a", number: 7 }, (step) => steps.push(step)).then((found) => { reply = found; });
  for (let times = 0; times < 400 && reply === null; times++) {
    mock.timers.tick(100);
    await setImmediate();
  }
  mock.timers.reset();
  assert.deepEqual(reply, expected);
  assert.ok(numbers.every((number) => number === 7));
  if (expected.answer) assert.deepEqual(steps.at(-1), { text: "Working", done: 1, total: 3 });
});
