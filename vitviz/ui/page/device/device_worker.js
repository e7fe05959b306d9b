// One worker of a team, as a script of its own: loads the network, and computes passes, one at a time.

import { Cancelled, Exchange } from "./exchange.js";
import { openKernels } from "./kernels.js";
import { openNetwork, readDeviceFile } from "./network.js";

/** @type {Network} */
let network;
/** @type {Exchange} */
let exchange;

/** @param {ToWorker} message */
async function answerTeam(message) {
  switch (message.kind) {
    case "load":
      exchange = new Exchange(message.rank, message.ports);
      network = openNetwork(readDeviceFile(message.file), openKernels(message.wasm));
      return { kind: "loaded", kernels: network.kernels.kind };
    case "cancel":
      return exchange.cancel(message.pass);
    case "encode": {
      const { pass, pixels, options, isAlone } = message;
      const rank = exchange.begin(pass, isAlone, (layer) => self.postMessage({ kind: "layer", pass, layer }));
      return { kind: "answer", pass, encoding: await network.encode(pixels, options, rank) };
    }
  }
}

self.onmessage = async ({ data }) => {
  try {
    const answer = await answerTeam(data), encoding = answer && "encoding" in answer ? answer.encoding : null;
    const buffers = Object.values(encoding ?? {}).flatMap((value) => (value instanceof Float32Array ? [value.buffer] : []));
    if (answer) self.postMessage(answer, { transfer: [...new Set(buffers)] });
  } catch (error) {
    const isCancelled = error instanceof Cancelled;
    self.postMessage({ kind: "failed", pass: data.pass, isCancelled, message: error instanceof Error ? error.message : String(error) });
  }
};
