// The page's third source of answers where something fails, ends or is forgotten.

import assert from "node:assert/strict";
import { test } from "node:test";

import { DeviceBackend } from "../../vitviz/ui/page/device/device_backend.js";
import { Networks } from "../../vitviz/ui/page/device/networks.js";
import { openWorker } from "../../vitviz/ui/page/device/worker_client.js";

const backendOf = () => new DeviceBackend(/** @type {any} */ ({
  settings: { methods: [], probes: [] }, state: { views: [{}] }, views: [{}], models: {}, device: { folder: "", models: {}, pictures: {} },
}));
const silent = () => {};

test("a run that does not end early is left as soon as it is stopped, and others go on", async () => {
  const backend = backendOf();
  backend.runs = { probe: () => new Promise(silent), rank: async () => ({ drops: [] }) };
  const stopped = backend.run({ kind: "probe", page: "p", number: 1 }, silent);
  const other = backend.run({ kind: "rank", page: "p", number: 2 }, silent);
  backend.end({ page: "p", number: 1 });
  assert.deepEqual(await stopped, { stopped: true });
  assert.deepEqual(await other, { drops: [] });
  assert.equal(backend.running.size, 0);
});

test("what cannot be fetched is asked for again, and may be retried by hand", async (context) => {
  const backend = backendOf();
  globalThis.document ??= /** @type {any} */ ({ getElementById: () => null });
  let count = 0;
  context.mock.method(globalThis, "fetch", async () => { count += 1, assert.fail("no connection"); });
  for (const expected of [1, 2]) {
    await assert.rejects(backend.ask("file", {}), /The weights cannot be fetched/);
    assert.equal(count, expected);
  }
  backend.runs = { probe: () => backend.ask("probe", {}) };
  const reply = await backend.run({ kind: "probe", page: "p", number: 1 }, silent);
  assert.deepEqual([reply.failed, reply.final], ["The weights cannot be fetched: is there a connection?", undefined]);
});

test("the analysis that was asked about last is forgotten last", async () => {
  const backend = backendOf(), forgotten = /** @type {string[]} */ ([]);
  backend.computed = async (uid) => /** @type {any} */ ({ facts: { uid } });
  backend.ask = async (kind, { uid }) => forgotten.push(uid);
  for (const uid of ["a", "b", "c", "d"]) await backend.analyse(uid, /** @type {any} */ ({}));
  await backend.analysis("a");
  await backend.analyse("e", /** @type {any} */ ({}));
  assert.deepEqual(forgotten, ["b"]);
  assert.throws(() => backend.analysis("b"), { expired: true });
  assert.equal((await backend.analysis("a")).facts.uid, "a");
});

test("a network whose workers ended is opened again", async () => {
  const networks = new Networks({}, /** @type {any} */ ({}));
  networks.open = async () => /** @type {any} */ ({ team: { closed: null, close() {} } });
  const first = await networks.get("a");
  assert.equal(await networks.get("a"), first);
  first.team.closed = Error("The network's worker ended");
  assert.notEqual(await networks.get("a"), first);
});

test("a worker that does not start refuses every question", async () => {
  const worker = /** @type {any} */ ({ postMessage() {} });
  globalThis.Worker = /** @type {any} */ (function () { return worker; });
  const ask = openWorker(""), waiting = ask("file", {});
  worker.onerror({ message: "blocked" });
  await assert.rejects(waiting, /blocked/);
  await assert.rejects(ask("file", {}), /blocked/);
});
