// Requests that take long: one at a time, at most one in each slot, whatever becomes of their replies.

import assert from "node:assert/strict";
import { mock, test } from "node:test";
import { setImmediate } from "node:timers/promises";

import { RequestQueue } from "../../vitviz/ui/page/request_queue.js";

test("a request is sent once, and a new one of its slot stops the one before", async () => {
  const sent = [], replies = [], stopped = [], ends = [];
  const run = (request) => {
    sent.push(request.key);
    return new Promise((done) => replies.push(done));
  };
  const queue = new RequestQueue({ run, end: ({ number }) => stopped.push(number) }, () => {});
  const first = queue.request("map 0", "a", { kind: "map", key: "a" });
  assert.equal(queue.request("map 0", "a", { kind: "map", key: "a" }), first);
  first.catch((error) => ends.push(error.replaced));
  const second = queue.request("map 0", "b", { kind: "map", key: "b" });
  await null;
  // The server still works on the first: the second waits.
  assert.deepEqual(sent, ["a"]);
  replies[0]({ stopped: true });
  await setImmediate();
  replies[1]({ path: "right" });
  assert.deepEqual([(await second).path, stopped, ends, sent], ["right", [1], [true], ["a", "b"]]);
});

test("what others need is sent first", async () => {
  const sent = [], slots = ["compare", "switch", "map 1 a", "map 0 b", "analysis 1", "analysis 0", "open"];
  const queue = new RequestQueue({ run: async ({ kind }) => { sent.push(kind); return {}; }, end: () => {} }, () => {});
  await Promise.all(slots.map((slot) => queue.request(slot, slot, { kind: slot })));
  assert.deepEqual(sent, ["compare", "open", "analysis 1", "analysis 0", "map 1 a", "map 0 b", "switch"]);
});

/** Replies that come after any time, and some never. */
class FakeBackend {
  constructor(seed) {
    this.seed = seed;
    this.ended = new Set();
  }

  random() {
    this.seed = (this.seed * 1103515245 + 12345) % 2147483648;
    return this.seed / 2147483648;
  }

  wait(milliseconds) {
    return new Promise((done) => setTimeout(done, milliseconds * this.random()));
  }

  async run({ number, key }, showProgress) {
    const fate = this.random();
    await this.wait(3000);
    showProgress({ done: 1, total: 3, text: "" });
    await this.wait(3000);
    if (fate < 0.1) return { failed: "The server does not answer" };
    return this.ended.has(number) ? { stopped: true } : { reply: key };
  }

  end({ number }) {
    this.ended.add(number);
  }
}

for (let seed = 0; seed < 8; seed++) test(`the last request of each slot is answered, whatever becomes of replies (${seed})`, async () => {
  mock.timers.enable({ apis: ["setTimeout"] });
  const backend = new FakeBackend(seed), shown = [], queue = new RequestQueue(backend, (step) => shown.push(step));
  const latest = {}, settled = {};
  let count = 0, isOver = false;
  const choose = async () => {
    while (count < 40) {
      const slot = ["analysis 0", "analysis 1", "map 0 x", "switch"][Math.floor(4 * backend.random())], key = `key ${++count}`;
      if (backend.random() < 0.15) {
        queue.drop(slot);
        delete latest[slot];
      } else {
        latest[slot] = key;
        queue.request(slot, key, { kind: "x", key }).then(
          ({ reply }) => { settled[key] = reply; },
          (error) => { settled[key] = error.replaced ? "replaced" : error.message; },
        );
      }
      await backend.wait(1500);
    }
    isOver = true;
  };
  choose();
  for (let steps = 0; steps < 2000 && !(isOver && !queue.running && queue.queue.size === 0); steps++) {
    mock.timers.tick(100);
    await setImmediate();
  }
  mock.timers.reset();
  assert.equal(queue.running, null);
  assert.equal(shown.at(-1), null);
  const isAnswered = (key) => settled[key] === key || settled[key] === "The server does not answer";
  assert.deepEqual(Object.values(latest).filter((key) => !isAnswered(key)), []);
  assert.deepEqual(Object.entries(settled).filter(([key, reply]) => reply.startsWith("key") && reply !== key), []);
  assert.ok(Object.values(settled).some((reply) => reply.startsWith("key")));
});
