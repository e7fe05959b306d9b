// One worker of a team, as a script of its own: loads the network, and computes passes, one at a time.

import { readDeviceFile } from "./device_file.js";
import { Network } from "./encoder.js";
import { Cancelled, Exchange } from "./exchange.js";
import { Gradients } from "./gradients.js";
import { openKernels } from "./kernels.js";

/** @type {Network} */
let network;
/** @type {Exchange} */
let exchange;
/** Its memory is taken when a gradient is first asked for. @type {Gradients} */
let gradients;

/** @param {ToWorker} message */
async function answerTeam(message) {
  switch (message.kind) {
    case "load":
      exchange = new Exchange(message.rank, message.ports);
      network = new Network(readDeviceFile(message.file), openKernels(message.wasm));
      return { kind: "loaded", kernels: network.kernels.kind };
    case "cancel":
      return exchange.cancel(message.pass);
    default: {
      const { pass, pixels, isAlone } = message, rank = exchange.begin(pass, isAlone, () => self.postMessage({ kind: "layer", pass }));
      if (message.kind === "encode") return { kind: "answer", pass, answer: await network.encode(pixels, message.options, rank) };
      gradients ??= new Gradients(network);
      return { kind: "answer", pass, answer: await gradients.differentiate(pixels, message.target, message.wants, rank.onLayer) };
    }
  }
}

self.onmessage = async ({ data }) => {
  try {
    const reply = await answerTeam(data), values = Object.values((reply && "answer" in reply && reply.answer) || {});
    const buffers = values.flatMap((value) => (value instanceof Float32Array ? [value.buffer] : []));
    if (reply) self.postMessage(reply, { transfer: [...new Set(buffers)] });
  } catch (error) {
    const isCancelled = error instanceof Cancelled;
    self.postMessage({ kind: "failed", pass: data.pass, isCancelled, message: error instanceof Error ? error.message : String(error) });
  }
};
