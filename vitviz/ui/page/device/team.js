// The network in workers, so that the page stays smooth: one, or several that share out the tokens of a picture.

import { readDeviceFile } from "./device_file.js";
import { workerAt } from "./worker_client.js";

/** A pass that waits for its workers, or that they compute. */
class TeamJob {
  /**
   * @param {TeamRequest} request
   * @param {boolean} apart whether one worker computes all of it
   * @param {number} total number of its steps
   * @param {((done: number, total: number) => void) | undefined} onProgress
   */
  constructor(request, apart, total, onProgress) {
    this.request = request;
    this.apart = apart;
    this.total = total;
    this.onProgress = onProgress;
    /** Workers that have not answered. @type {Set<Worker>} */
    this.busy = new Set();
    /** @type {Encoding | Gradient | { card: string } | null} */
    this.answer = null;
    this.isCancelled = false;
    this.steps = 0;
    /** @type {(answer: any) => void} */
    this.resolve = () => {};
    /** @type {(reason: Error) => void} */
    this.reject = () => {};
    /** @type {Promise<any>} */
    this.promise = new Promise((resolve, reject) => { this.resolve = resolve, this.reject = reject; });
  }
}

/** Workers that have loaded a network. */
export class Team {
  /**
   * @param {Worker[]} workers
   * @param {DeviceFile} file
   */
  constructor(workers, file) {
    this.workers = workers;
    const { tensors, data, ...facts } = file;
    this.facts = facts;
    /** What the kernels are. @type {KernelKind} */
    this.kernels = "simd";
    /** The graphics card that computes forward passes; "" while there is none. */
    this.card = "";
    /** Why there is none. */
    this.cardless = "";
    this.passes = 0;
    /** @type {TeamJob[]} */
    this.queue = [];
    /** By the number of the pass. @type {Map<number, TeamJob>} */
    this.running = new Map();
    /** @type {Error | null} */
    this.closed = null;
  }

  /**
   * Loads the network in every worker.
   * @param {ArrayBuffer} file
   * @param {KernelBinaries} wasm
   * @param {GpuOptions | null} gpu for the first worker, which tries a graphics card while it answers without
   */
  async load(file, wasm, gpu) {
    const { workers } = this;
    const ports = workers.map(() => /** @type {(MessagePort | null)[]} */ (Array(workers.length).fill(null)));
    for (let one = 0; one < workers.length; one++)
      for (let other = one + 1; other < workers.length; other++) {
        const { port1, port2 } = new MessageChannel();
        ports[one][other] = port1, ports[other][one] = port2;
      }
    const kinds = workers.map((worker, rank) => new Promise((resolve, reject) => {
      worker.onmessage = ({ data }) => {
        if (data.kind === "loaded") resolve(data.kernels);
        else if (data.kind === "gpu") this.receive(worker, data);
        else reject(Error(data.message));
      };
      worker.onerror = (event) => reject(Error(event.message || "The network's worker does not start"));
      // The last worker takes the file, of which the others get copies.
      const transfer = [...ports[rank].filter((port) => port !== null), ...(rank === workers.length - 1 ? [file] : [])];
      worker.postMessage({ kind: "load", file, wasm, rank, ports: ports[rank], gpu: rank ? null : gpu }, transfer);
    }));
    [this.kernels] = await Promise.all(kinds);
    for (const worker of workers) {
      worker.onmessage = ({ data }) => this.receive(worker, data);
      worker.onerror = (event) => this.close(Error(event.message || "The network's worker ended"));
    }
  }

  /**
   * One pass of the network. Passes wait for each other in the order in which they were asked for.
   *
   * @param {Float32Array} pixels "channel height width", prepared
   * @param {TeamOptions} options those of the network's `encode`; `signal` ends the pass, which then rejects with its reason;
   *   with `apart`, one worker computes all tokens, so that as many passes run at once as there are workers
   * @param {((done: number, total: number) => void)=} onProgress called with the number of finished layers
   * @returns {Promise<Encoding>}
   */
  encode(pixels, { signal, apart = false, ...options } = {}, onProgress) {
    return this.ask(new TeamJob({ kind: "encode", pixels, options }, apart, this.facts.config.depth, onProgress), signal);
  }

  /**
   * A score and its gradients, by one worker; as `differentiate` of gradients.js.
   *
   * @param {Float32Array} pixels "channel height width", prepared
   * @param {ScoreTarget} target
   * @param {GradientWants} wants
   * @param {{ signal?: AbortSignal }} options
   * @param {((done: number, total: number) => void)=} onProgress called with the number of finished steps
   * @returns {Promise<Gradient>}
   */
  differentiate(pixels, target, wants, { signal } = {}, onProgress) {
    const { products, gradCam, pixels: ofPixels, legrad } = wants, sweeps = 1 + Number(Boolean(products || gradCam || ofPixels));
    const total = this.facts.config.depth * (sweeps + Number(Boolean(legrad)));
    return this.ask(new TeamJob({ kind: "differentiate", pixels, target, wants }, true, total, onProgress), signal);
  }

  /**
   * @param {TeamJob} job
   * @param {AbortSignal=} signal
   */
  ask(job, signal) {
    if (this.closed) return Promise.reject(this.closed);
    if (signal?.aborted) return Promise.reject(signal.reason);
    const stop = () => this.cancel(job, signal?.reason), forget = () => signal?.removeEventListener("abort", stop);
    signal?.addEventListener("abort", stop);
    // Otherwise the pictures of all passes would stay in memory as long as the signal.
    job.promise.then(forget, forget);
    this.queue.push(job);
    this.start();
    return job.promise;
  }

  /** Starts the passes for which there are workers. */
  start() {
    for (let job = this.queue[0]; job; job = this.queue[0]) {
      const busy = new Set([...this.running.values()].flatMap((each) => [...each.busy]));
      const idle = this.workers.filter((worker) => !busy.has(worker)), [first] = this.workers;
      const isOnCard = job.request.kind === "check" || (job.request.kind === "encode" && this.card !== "");
      const count = job.apart || isOnCard ? 1 : this.workers.length;
      if (isOnCard ? !idle.includes(first) : idle.length < count) return;
      this.queue.shift();
      const pass = ++this.passes, isAlone = count === 1;
      // The first worker has the graphics card, which is left to forward passes.
      job.busy = new Set(isOnCard ? [first] : idle.slice(-count));
      this.running.set(pass, job);
      for (const worker of job.busy) worker.postMessage({ ...job.request, pass, isAlone });
    }
  }

  /**
   * @param {TeamJob} job
   * @param {Error} reason
   */
  cancel(job, reason) {
    job.isCancelled = true;
    job.reject(reason);
    this.queue = this.queue.filter((each) => each !== job);
    for (const [pass, each] of this.running)
      if (each === job) for (const worker of job.busy) worker.postMessage({ kind: "cancel", pass });
  }

  /**
   * @param {Worker} worker
   * @param {FromWorker} message
   */
  receive(worker, message) {
    if (message.kind === "gpu") {
      this.card = "", this.cardless = message.reason;
      // It computes once it has shown that it computes the same.
      if (message.card) this.ask(new TeamJob({ kind: "check" }, true, 0, undefined)).then(({ card }) => { this.card = card; }, () => {});
      return;
    }
    const job = this.running.get(message.pass);
    if (!job) return;
    if (message.kind === "layer") {
      if (worker === job.busy.values().next().value && !job.isCancelled) job.onProgress?.(Math.min(job.steps++, job.total - 1), job.total);
      return;
    }
    job.busy.delete(worker);
    if (message.kind === "answer") job.answer ??= message.answer;
    // The others would wait for this worker's tokens.
    else if (!message.isCancelled) this.cancel(job, Error(message.message));
    if (!job.busy.size) {
      this.running.delete(message.pass);
      if (job.answer) job.resolve(job.answer);
    }
    this.start();
  }

  /**
   * Ends the workers; passes that are not finished reject.
   * @param {Error} reason
   */
  close(reason = Error("The network was closed")) {
    this.closed ??= reason;
    this.workers.forEach((worker) => worker.terminate());
    for (const job of [...this.queue, ...this.running.values()]) job.reject(reason);
    this.queue = [];
    this.running.clear();
  }
}

/**
 * Loads a network into workers.
 *
 * @param {object} options
 * @param {ArrayBuffer} options.file a device file, which the workers take
 * @param {KernelBinaries} options.wasm
 * @param {string} options.script the text of device_worker.js with all that it imports
 * @param {GpuOptions | null=} options.gpu for forward passes on a graphics card, as soon as it is known to compute the same
 * @param {number=} options.workers how many; several answer a picture sooner where the processor is idle, and each has its
 *   own copy of the weights
 */
export async function openDevice({ file, wasm, script, gpu = null, workers = 1 }) {
  const contents = readDeviceFile(file), url = URL.createObjectURL(new Blob([script], { type: "text/javascript" }));
  const team = new Team(Array.from({ length: workers }, () => workerAt(url)), contents);
  try {
    await team.load(file, wasm, gpu);
  } catch (error) {
    team.close();
    throw error;
  } finally {
    URL.revokeObjectURL(url);
  }
  return team;
}
