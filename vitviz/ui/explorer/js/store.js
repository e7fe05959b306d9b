// The state of the page, which everything on it is drawn from, and what has to be asked of the server to show it.

// What a view says of its analysis; all else is about the map that is shown of it.
const ANALYSED = ["model", "step", "picture", "frame", "fit", "resolution"];
const MAX_PINS = 6;
// Analyses to which the page can go back without asking for them again.
const MAX_KNOWN = 8;

// What is chosen in a view, and the settings that belong to that choice alone.
const SETTINGS_OF = [["method", "parameters"], ["probe", "probe_parameters"]];

const copyOf = (value) => JSON.parse(JSON.stringify(value));
const same = (one, other) => JSON.stringify(one) === JSON.stringify(other);

/** What an analysis is of: two views with the same key show the same analysis. */
function analysisKey(view) {
  return JSON.stringify(ANALYSED.map((name) => view[name] ?? null));
}

/** A state with the changes that lead from one state to another: by entry, of views and their parameters too. */
function withChanges(state, before, after) {
  const merged = { ...state };
  for (const name of Object.keys({ ...before, ...after })) {
    const [old, now, value] = [before[name], after[name], state[name]];
    if (same(old, now)) continue;
    if (name === "views") merged.views = value.map((view, index) => withChanges(view, old[index] ?? view, now[index] ?? view));
    else if (name === "parameters") merged.parameters = withChanges(value, old, now);
    else if (now === undefined) delete merged[name];
    else merged[name] = now;
  }
  for (const [name, settings] of SETTINGS_OF) if (name in state && !same(before[name], after[name])) merged[settings] = after[settings];
  return merged;
}

/** The only writer of the state: every control, key, click, link and reply is a patch of it. */
class Store {
  /**
   * @param state as `PageState.to_json` of state.py prints it
   * @param changed is called after every change, with the state before
   */
  constructor(state, changed) {
    Object.assign(this, { state: copyOf(state), changed, version: 0 });
  }

  patch(change) {
    this.replace({ ...this.state, ...change });
  }

  patchView(index, change) {
    const views = this.state.views.map((view, place) => (place === index ? { ...view, ...change } : view));
    this.patch({ views });
  }

  /** Set parameters of a view's map; null stands for the default, which is not written down. */
  patchParameters(index, change) {
    const parameters = { ...this.state.views[index].parameters, ...change };
    for (const name of Object.keys(parameters)) if (parameters[name] === null) delete parameters[name];
    this.patchView(index, { parameters });
  }

  replace(state) {
    const before = this.state;
    if (same(before, state)) return;
    this.state = copyOf(state);
    this.version += 1;
    this.changed(before);
  }
}

// How often the server is asked how far it is, in milliseconds.
const POLL_EVERY = 600;
// A request that the server does not know after so many questions is sent again, once.
const LOST_AFTER = 6;
// What is asked for first; the first word of a slot.
const ORDER = ["open", "analysis", "map", "switch", "probe", "rank", "compare", "film"];

/** Why a promise is rejected of which nobody needs the result any more. */
const replaced = () => Object.assign(Error("replaced"), { replaced: true });

/**
 * What runs a network or takes long: one request at a time. Each slot has at most one request that is wanted; a reply
 * whose request is no longer the one that runs is dropped, so that it does not matter how late or how often it comes.
 */
class Runs {
  /**
   * @param send receives a request; its reply comes to `reply`, or by `server.progress`
   * @param server progress and stop, as component.py describes them
   * @param shown receives how far the running request is, or null
   */
  constructor(send, server, shown) {
    const page = Array.from(crypto.getRandomValues(new Uint8Array(18)), (byte) => byte.toString(36).padStart(2, "0")).join("");
    Object.assign(this, { send, server, shown, page, number: 0, wanted: new Map(), running: null });
  }

  /**
   * A promise of the reply; rejected where it fails (`stopped`, `expired`), or where something else is wanted (`replaced`).
   * @param slot a word of ORDER, and what tells it from others
   * @param key of the request: the same one is not asked twice
   */
  want(slot, key, body) {
    const known = this.wanted.get(slot) ?? (this.running?.slot === slot && !this.running.replaced ? this.running : null);
    if (known?.key === key) return known.promise;
    this.drop(slot);
    const entry = { slot, key, body };
    entry.promise = new Promise((resolve, reject) => Object.assign(entry, { resolve, reject }));
    this.wanted.set(slot, entry);
    this.next();
    return entry.promise;
  }

  /** Nothing of a slot is wanted any more. */
  drop(slot) {
    this.wanted.get(slot)?.reject(replaced());
    this.wanted.delete(slot);
    if (this.running?.slot !== slot || this.running.replaced) return;
    this.running.replaced = true;
    this.running.reject(replaced());
    this.stop();
  }

  /** Drop every slot that begins so and is not among those that are wanted. */
  keep(start, slots) {
    const known = [...this.wanted.keys(), ...(this.running ? [this.running.slot] : [])];
    for (const slot of known) if (slot.startsWith(start) && !slots.includes(slot)) this.drop(slot);
  }

  /** End what runs. */
  stop() {
    const { running, page } = this;
    if (running) Promise.resolve(this.server.stop({ page, number: running.number })).catch(() => {});
  }

  next() {
    if (this.running) return;
    const slots = [...this.wanted.keys()], slot = ORDER.flatMap((word) => slots.filter((each) => each.startsWith(word)))[0];
    if (!slot) return this.shown(null);
    this.running = this.wanted.get(slot);
    this.wanted.delete(slot);
    this.start();
  }

  start() {
    const { running } = this;
    Object.assign(running, { number: ++this.number, unknown: 0, sent: (running.sent ?? 0) + 1 });
    this.shown({ text: "", done: 0, total: 1, slot: running.slot, method: running.body.method });
    this.send({ ...running.body, page: this.page, number: running.number });
    this.poll(running.number);
  }

  /** Ask how far it is; the answer may be the reply itself, where that was lost on its way. */
  async poll(number) {
    await new Promise((done) => setTimeout(done, POLL_EVERY));
    if (this.running?.number !== number) return;
    let answer = null;
    try {
      answer = await this.server.progress({ page: this.page, number });
    } catch {
      // The connection is away for a moment; the next question tells.
    }
    const { running } = this;
    if (running?.number !== number) return;
    if (answer?.reply) return this.reply(answer.reply);
    running.unknown = answer && !answer.unknown ? 0 : running.unknown + 1;
    if (answer && !answer.unknown) this.shown({ ...answer, slot: running.slot });
    if (running.unknown < LOST_AFTER) this.poll(number);
    else if (running.sent < 2) this.start();
    else this.reply({ page: this.page, number, failed: "The server does not answer" });
  }

  reply(reply) {
    const { running } = this;
    if (!running || reply?.page !== this.page || reply.number !== running.number) return;
    this.running = null;
    // Of one that was replaced, the promise is rejected already.
    if (reply.failed) running.reject(Object.assign(Error(reply.failed), { final: reply.final }));
    else if (reply.stopped) running.reject(Object.assign(Error("Stopped"), { stopped: true }));
    else if (reply.expired) running.reject(Object.assign(Error("expired"), { expired: true }));
    else running.resolve(reply);
    this.next();
  }
}
