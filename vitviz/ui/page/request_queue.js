// Requests that take long, one at a time.

import { randomId } from "./numbers.js";

// The order of requests, by the first word of their slots.
const SLOT_ORDER = ["open", "analysis", "picture", "map", "switch", "probe", "rank", "compare", "film", "flip"];
// It runs while nobody waits, gives way to every other request, and shows its progress to those who asked for it.
const MEANWHILE = "flip";

/** The error of a request whose result is no longer needed. */
const replacedError = () => Object.assign(Error("replaced"), { replaced: true });

/**
 * Requests that take long, one at a time, and at most one in each slot.
 */
export class RequestQueue {
  /**
   * @param {Backend} backend has the functions `run` and `end`
   * @param {(progress: ShownProgress | null) => void} showProgress receives the progress of the running request, or null
   */
  constructor(backend, showProgress) {
    this.backend = backend;
    this.showProgress = showProgress;
    this.page = randomId();
    this.number = 0;
    /** @type {Map<string, any>} */
    this.queue = new Map();
    /** @type {any} */
    this.running = null;
  }

  /**
   * A promise of the reply. An error may have the flag `stopped`, `expired`, or `replaced` by another request of the slot.
   * @param {string} slot begins with a word of SLOT_ORDER
   * @param {string} key of the request; a pending request with the same key is not sent again
   * @param {any} body
   * @param {((unfinished: any) => void)=} onUnfinished receives what is there before the reply
   */
  request(slot, key, body, onUnfinished = () => {}) {
    const pending = this.queue.get(slot) ?? (this.running?.slot === slot && !this.running.replaced ? this.running : null);
    if (pending?.key === key) return pending.promise;
    this.drop(slot);
    this.drop(MEANWHILE);
    /** @type {any} */
    const entry = { slot, key, body, onUnfinished };
    entry.promise = new Promise((resolve, reject) => Object.assign(entry, { resolve, reject }));
    this.queue.set(slot, entry);
    this.next();
    return entry.promise;
  }

  /**
   * Drop the request of a slot.
   * @param {string} slot
   */
  drop(slot) {
    this.queue.get(slot)?.reject(replacedError());
    this.queue.delete(slot);
    if (this.running?.slot !== slot || this.running.replaced) return;
    this.running.replaced = true;
    this.running.reject(replacedError());
    this.stop();
  }

  /**
   * Drop the requests of all slots with a prefix but for the given ones.
   * @param {string} prefix
   * @param {string[]} slots
   */
  keepOnly(prefix, slots) {
    const openSlots = [...this.queue.keys(), ...(this.running ? [this.running.slot] : [])];
    for (const slot of openSlots) if (slot.startsWith(prefix) && !slots.includes(slot)) this.drop(slot);
  }

  /**
   * A request of some slots that is not answered yet.
   * @param {string} prefix
   */
  pending(prefix) {
    return [this.running, ...this.queue.values()].find((each) => each?.slot.startsWith(prefix) && !each.replaced);
  }

  /** Whether somebody waits. */
  get isBusy() {
    return Boolean(this.running && this.running.slot !== MEANWHILE);
  }

  /** Stop the running request. */
  stop() {
    if (this.running) this.backend.end({ page: this.page, number: this.running.number });
  }

  next() {
    if (this.running) return;
    const slots = [...this.queue.keys()], slot = SLOT_ORDER.flatMap((word) => slots.filter((name) => name.startsWith(word)))[0];
    if (!slot) return this.showProgress(null);
    this.running = this.queue.get(slot);
    this.queue.delete(slot);
    this.start();
  }

  async start() {
    const { running, page } = this, { slot, body } = running;
    const show = (/** @type {Progress} */ step) => (slot !== MEANWHILE || body.is_asked)
      && this.showProgress({ ...step, slot, method: body.method });
    running.number = ++this.number;
    show({ text: "", done: 0, total: 1 });
    const reply = await this.backend.run({ ...body, page, number: running.number }, (step) => {
      if (running.replaced) return;
      show(step);
      if (step.unfinished) running.onUnfinished(step.unfinished);
    });
    this.running = null;
    // The promise of a replaced request is already rejected.
    if (reply.failed || reply.stopped || reply.expired) running.reject(Object.assign(Error(reply.failed ?? "Stopped"), reply));
    else running.resolve(reply);
    this.next();
  }
}
