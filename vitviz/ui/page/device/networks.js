// The networks of the page, opened when they are needed.

import { readDeviceFile } from "./device_file.js";
import { joinedWords } from "./parts.js";
import { openDevice } from "./team.js";

// Those of two maps side by side.
const MAX_NETWORKS = 2;
const MAX_WORKERS = 2;
// Their instructions run faster, but not in every browser.
const WASM = { relaxed: "kernels-relaxed.wasm", simd: "kernels.wasm" };

/** @typedef {{ file: DeviceFile, team: import("./team.js").Team, workers: number }} OpenNetwork */

export class Networks {
  /**
   * @param {Record<string, DeviceModel>} models by their names in states
   * @param {import("./parts.js").Parts} parts
   */
  constructor(models, parts) {
    this.models = models;
    this.parts = parts;
    /** @type {Map<string, Promise<OpenNetwork>>} */
    this.opened = new Map();
    // Receives the progress of what is loaded, and null at its end.
    /** @type {(step: Progress | null) => void} */
    this.onLoading = () => {};
  }

  /**
   * The network of a model; one that failed, or whose workers ended, is opened again.
   * @param {string} name
   */
  get(name) {
    const opening = this.opened.get(name)?.then((network) => (network.team.closed ? this.open(name) : network)) ?? this.open(name);
    this.opened.delete(name);
    this.opened.set(name, opening);
    opening.catch(() => this.opened.delete(name));
    for (const oldest of this.opened.keys()) if (this.opened.size > MAX_NETWORKS) this.close(oldest);
    return opening;
  }

  /** @param {string} name */
  async close(name) {
    const closed = this.opened.get(name);
    this.opened.delete(name);
    (await closed?.catch(() => null))?.team.close();
  }

  /**
   * @param {string} name
   * @returns {Promise<OpenNetwork>}
   */
  async open(name) {
    const { part, title } = this.models[name], text = `Loading ${title}`;
    this.onLoading({ text, done: 0, total: 1 });
    try {
      const load = this.parts.read(part, (done, total) => this.onLoading({ text, done, total }));
      const [weights, script, shaders, relaxed, simd] = await Promise.all([
        load, this.parts.text("device_worker.js"), this.parts.text("kernels.wgsl"),
        ...[WASM.relaxed, WASM.simd].map(async (name) => (await this.parts.read(name)).buffer),
      ]);
      const bytes = joinedWords(weights), file = readDeviceFile(bytes);
      const workers = Math.min(MAX_WORKERS, navigator.hardwareConcurrency || 1);
      return { file, workers, team: await openDevice({ file: bytes, wasm: { relaxed, simd }, script, gpu: { shaders }, workers }) };
    } finally {
      this.onLoading(null);
    }
  }
}
