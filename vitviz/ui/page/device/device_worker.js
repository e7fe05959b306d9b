// One worker of a team, as a script of its own: loads the network, and computes passes, one at a time.

import { readDeviceFile } from "./device_file.js";
import { Network } from "./encoder.js";
import { Cancelled, Exchange } from "./exchange.js";
import { openGpu } from "./gpu_kernels.js";
import { Gradients } from "./gradients.js";
import { openKernels } from "./kernels.js";

/** @type {Network} */
let network;
/** @type {Exchange} */
let exchange;
/** Its memory is taken when a gradient is first asked for. @type {Gradients} */
let gradients;
/** Once it is open, and until it fails. @type {Awaited<ReturnType<typeof openGpu>> | null} */
let gpu = null;
/** Whether it has shown that it computes the same. */
let isChecked = false;

/**
 * Opens the graphics card, and says so.
 * @param {GpuOptions} options
 */
async function openCard(options) {
  try {
    gpu = await openGpu(network, options);
    gpu.device.lost.then(({ message }) => gpu && closeCard(`lost: ${message}`));
    self.postMessage({ kind: "gpu", card: gpu.card, reason: "" });
  } catch (/** @type {any} */ error) {
    closeCard(error.message);
  }
}

/** @param {string} reason */
function closeCard(reason) {
  gpu?.close();
  gpu = null;
  self.postMessage({ kind: "gpu", card: "", reason });
}

/**
 * A pass on the graphics card; until it was checked, or if it fails there, by the kernels.
 * @param {Float32Array} pixels
 * @param {EncodeOptions} options
 * @param {Rank} rank
 */
async function encodeAlone(pixels, options, rank) {
  try {
    if (gpu && isChecked) return await gpu.encode(pixels, options, rank);
  } catch (/** @type {any} */ error) {
    if (error instanceof Cancelled) throw error;
    closeCard(error.message);
  }
  return network.encode(pixels, options, rank);
}

/** @param {ToWorker} message */
async function answerTeam(message) {
  switch (message.kind) {
    case "load":
      exchange = new Exchange(message.rank, message.ports);
      network = new Network(readDeviceFile(message.file), openKernels(message.wasm));
      if (message.gpu) openCard(message.gpu);
      return { kind: "loaded", kernels: network.kernels.kind };
    case "cancel":
      return exchange.cancel(message.pass);
    default: {
      const { pass, isAlone } = message, rank = exchange.begin(pass, isAlone, () => self.postMessage({ kind: "layer", pass }));
      if (message.kind === "encode") {
        const encode = isAlone ? encodeAlone : network.encode.bind(network);
        return { kind: "answer", pass, answer: await encode(message.pixels, message.options, rank) };
      }
      if (message.kind === "check") {
        await gpu?.check().then(() => { isChecked = true; }, (error) => closeCard(error.message));
        return { kind: "answer", pass, answer: { card: gpu?.card ?? "" } };
      }
      gradients ??= new Gradients(network);
      return { kind: "answer", pass, answer: await gradients.differentiate(message.pixels, message.target, message.wants, rank.onLayer) };
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
