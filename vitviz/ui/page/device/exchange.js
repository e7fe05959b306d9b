// What the workers of a team send each other, through message ports: that needs neither SharedArrayBuffer nor a page that
// is isolated from other sites, so that it works from disk.

/** Ends a pass that nobody waits for any more. */
export class Cancelled extends Error {}

/** Lets messages arrive that were sent in the meantime. */
function nextTask() {
  return new Promise((resolve) => {
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = () => { port1.close(), resolve(null); };
    port2.postMessage(null);
  });
}

/** One worker's side of the exchange. */
export class Exchange {
  /**
   * @param {number} rank
   * @param {(MessagePort | null)[]} ports to the worker of each rank; null for itself
   */
  constructor(rank, ports) {
    this.rank = rank;
    this.ports = ports;
    this.pass = 0;
    /** @type {Set<number>} */
    this.cancelled = new Set();
    /** @type {Map<string, Float32Array>} */
    this.arrived = new Map();
    /** @type {Map<string, { resolve: (values: Float32Array) => void, reject: (error: Error) => void }>} */
    this.waiting = new Map();
    ports.forEach((port, other) => { if (port) port.onmessage = ({ data }) => this.arrive(other, data); });
  }

  /**
   * @param {number} other
   * @param {{ pass: number, step: string, values: Float32Array }} message
   */
  arrive(other, { pass, step, values }) {
    // The rest of a pass that was cancelled here.
    if (pass < this.pass) return;
    const key = `${pass} ${step} ${other}`, waiting = this.waiting.get(key);
    this.waiting.delete(key);
    if (waiting) waiting.resolve(values);
    else this.arrived.set(key, values);
  }

  /**
   * The values that another rank sends in this step of the pass.
   * @param {string} step
   * @param {number} other
   * @returns {Promise<Float32Array>}
   */
  receive(step, other) {
    const key = `${this.pass} ${step} ${other}`, values = this.arrived.get(key);
    this.arrived.delete(key);
    if (values) return Promise.resolve(values);
    return new Promise((resolve, reject) => this.waiting.set(key, { resolve, reject }));
  }

  /**
   * Ends a pass at its next layer, or where it waits for another rank.
   * @param {number} pass
   */
  cancel(pass) {
    this.cancelled.add(pass);
    if (pass !== this.pass) return;
    for (const { reject } of this.waiting.values()) reject(new Cancelled());
    this.waiting.clear();
  }

  /**
   * Sends this rank's parts to the receivers, and waits for those of the senders.
   * @param {string} step
   * @param {(rank: number) => Float32Array[]} partsOf
   * @param {number[]} senders
   * @param {number[]} receivers
   */
  async swap(step, partsOf, senders, receivers) {
    if (this.cancelled.has(this.pass)) throw new Cancelled();
    const others = (/** @type {number[]} */ ranks) => ranks.filter((rank) => rank !== this.rank);
    if (senders.includes(this.rank))
      for (const other of others(receivers)) {
        const parts = partsOf(this.rank), values = new Float32Array(parts.reduce((total, part) => total + part.length, 0));
        parts.reduce((start, part) => (values.set(part, start), start + part.length), 0);
        this.ports[other]?.postMessage({ pass: this.pass, step, values }, [values.buffer]);
      }
    if (receivers.includes(this.rank))
      for (const other of others(senders)) {
        const values = await this.receive(step, other);
        partsOf(other).reduce((start, part) => (part.set(values.subarray(start, start + part.length)), start + part.length), 0);
      }
  }

  /**
   * This worker's part of a pass.
   * @param {number} pass numbers grow
   * @param {boolean} isAlone whether it computes all tokens
   * @param {() => void} report called before each layer
   * @returns {Rank}
   */
  begin(pass, isAlone, report) {
    this.pass = pass;
    this.arrived.forEach((_, key) => { if (Number.parseInt(key) < pass) this.arrived.delete(key); });
    this.cancelled.forEach((each) => { if (each < pass) this.cancelled.delete(each); });
    const everyone = isAlone ? [this.rank] : [...this.ports.keys()];
    return {
      rank: isAlone ? 0 : this.rank,
      ranks: everyone.length,
      share: (layer, partsOf) => this.swap(`layer ${layer}`, partsOf, everyone, everyone),
      gather: (partsOf) => this.swap("end", partsOf, everyone, everyone.slice(0, 1)),
      onLayer: async () => {
        await nextTask();
        if (this.cancelled.has(pass)) throw new Cancelled();
        report();
      },
    };
  }
}
