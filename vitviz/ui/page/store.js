// The state of the page, from which everything is drawn, and the requests to the server that it leads to.

import { changed, questionLeft, withValues } from "./question_rule.js";

// The fields of a view that its analysis depends on; the others are about the map.
export const INPUT_FIELDS = ["model", "step", "picture", "frame", "white", "color_profile", "fit", "resolution"];
export const MAX_PINS = 6;
// Analyses that the page can show again without a request.
export const MAX_ANALYSES = 8;

// A field of a view, and the settings that depend on it.
const DEPENDENT_FIELDS = [["method", "parameters"], ["probe", "probe_parameters"]];

/** @param {string} layout */
export const isPaired = (layout) => ["two", "difference", "alike"].includes(layout);
/** @param {any} value */
export const copyOf = (value) => JSON.parse(JSON.stringify(value));
/**
 * @param {any} a
 * @param {any} b
 */
export const isEqual = (a, b) => JSON.stringify(a) === JSON.stringify(b);

/**
 * The key of a view's analysis: two views with the same key show the same analysis.
 * @param {any} view
 */
export const analysisKey = (view) => JSON.stringify(INPUT_FIELDS.map((name) => view[name] ?? null));

/**
 * A state with the changes between two others, entry by entry, also inside views and their parameters.
 * @param {any} state
 * @param {any} before
 * @param {any} after
 */
export function withChanges(state, before, after) {
  const merged = { ...state };
  for (const name of Object.keys({ ...before, ...after })) {
    const [previous, next, value] = [before[name], after[name], state[name]];
    if (isEqual(previous, next)) continue;
    if (name === "views")
      merged.views = value.map((/** @type {View} */ view, /** @type {number} */ index) =>
        withChanges(view, previous[index] ?? view, next[index] ?? view),
      );
    else if (name === "parameters") merged.parameters = withChanges(value, previous, next);
    else if (next === undefined) delete merged[name];
    else merged[name] = next;
  }
  for (const [name, settings] of DEPENDENT_FIELDS)
    if (name in state && !isEqual(before[name], after[name])) merged[settings] = after[settings];
  return merged;
}

/** The only writer of the state: every control, key, click, link and reply is a patch of it. */
export class Store {
  /**
   * @param {any} state as `PageState.to_json` of state.py writes it
   * @param {import("./question_rule.js").Methods=} methods by name
   * @param {Record<string, any>[]=} questions
   */
  constructor(state, methods = {}, questions = []) {
    // Called after every change, with the state before.
    /** @type {(before: State) => void} */
    this.onChange = () => {};
    /** @type {State} */
    this.state = copyOf(state);
    this.version = 0;
    this.methods = methods;
    // What the visitor asks of each view.
    this.questions = [questions[0] ?? {}, questions[1] ?? {}];
  }

  /**
   * @param {Partial<State>} change
   * @param {Record<string, any>[]=} questions
   */
  patch(change, questions) {
    this.replace({ ...this.state, ...change }, questions);
  }

  /**
   * The visitor asks for parameters of each view's map; null is the default.
   * @param {(Record<string, any> | undefined)[]} changes
   */
  ask(changes) {
    const views = this.state.views.map((view, index) => ({ ...view, parameters: withValues(view.parameters, changes[index]) }));
    this.patch({ views }, this.questions.map((each, index) => withValues(each, changes[index])));
  }

  /**
   * Another method, picture, model, fit or resolution of views, which keep of their questions what the rule says.
   * @param {number | number[]} indices
   * @param {Partial<View>} change
   * @param {Partial<State>} others of the state
   */
  change(indices, change, others = {}) {
    const views = [...this.state.views], questions = [...this.questions];
    for (const index of [indices].flat()) {
      const next = changed(views[index], questions[index], change, isPaired(this.state.layout), this.methods);
      [views[index], questions[index]] = [next.view, next.question];
    }
    this.patch({ ...others, views }, questions);
  }

  /**
   * Show the state of a link, which asks all that it names, or what is known to have been asked where the link was written.
   * What the visitor has asked in the meantime is asked, too.
   * @param {State} state
   * @param {Record<string, any>[]=} known
   */
  open(state, known = state.views.map(({ parameters }) => parameters)) {
    this.replace(state, this.questions.map((each, index) => ({ ...known[index], ...each })));
  }

  /**
   * @param {number} index
   * @param {Partial<View>} change
   * @param {Partial<State>} others of the state
   */
  patchView(index, change, others = {}) {
    this.patch({ ...others, views: this.state.views.with(index, { ...this.state.views[index], ...change }) });
  }

  /**
   * @param {State} state
   * @param {Record<string, any>[]=} questions of each view; what it no longer shows is asked no more
   */
  replace(state, questions = this.questions) {
    const before = this.state;
    this.questions = questions.map((each, index) => (state.views[index] ? questionLeft(each, state.views[index], this.methods) : each));
    if (isEqual(before, state)) return;
    this.state = copyOf(state);
    this.version += 1;
    this.onChange(before);
  }

  /** Let the page follow what is no part of the state, such as an analysis that expired. */
  refresh() {
    this.onChange(this.state);
  }
}

