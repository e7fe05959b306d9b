// What a change of the page keeps of its question: walks of many, and single ones, through the page's own choices.

import assert from "node:assert/strict";
import { test } from "node:test";

const PARAMETERS = {
  direction: { kind: "choice", default: "row" }, layer: { kind: "layer", default: -1 }, head: { kind: "head", default: "mean" },
  query: { kind: "token", default: null }, target: { kind: "class", default: null }, start_layer: { kind: "layer", default: 0 },
  discard_ratio: { kind: "number", default: 0 }, mass: { kind: "number", default: 0.6 },
};
const METHODS = {
  attention: ["token", "direction", "layer", "head", "query"], attention_mass: ["token", "mass", "layer", "head", "query"],
  rollout: ["layers", "discard_ratio", "start_layer", "query"], attention_flow: ["layers", "start_layer", "query"],
  gradient_rollout: ["target", "target", "discard_ratio", "start_layer", "query"], relevance: ["target", "target", "start_layer", "query"],
  legrad: ["target", "target", "start_layer"], grad_cam: ["target", "target", "layer"],
};
const methods = Object.entries(METHODS).map(([name, [group, ...names]]) => ({
  name, group, about_a_class: group === "target", parameters: names.map((each) => ({ name: each, ...PARAMETERS[each] })),
}));
const INPUT = { model: "", picture: "cat", step: null, frame: null, white: null, color_profile: null, fit: null, resolution: null };
const VIEW = {
  ...INPUT, method: "attention", parameters: { layer: 2, query: [3, 4] }, pins: [], heads_off: [], patches_off: [],
  probe: "norms", probe_parameters: {}, alike: null,
};
const STATE = { views: [VIEW], layout: "one", panel: "", guide: 0, alike_layer: null };
const examples = ["example:fish", "example:astronaut.jpg"].map((id) => ({ id, name: id }));
const settings = { methods, probes: [{ name: "norms", parameters: [] }], scales: [], models: [], examples };
const element = { textContent: JSON.stringify({ settings, state: STATE, models: {}, views: [] }), querySelectorAll: () => [] };
element.querySelector = () => element;
Object.assign(globalThis, { document: { getElementById: () => element }, location: { pathname: "/" } });

const choices = await import("../../vitviz/ui/page/choices.js");
const { page, panes, store } = await import("../../vitviz/ui/page/page.js");
const { openingView } = await import("../../vitviz/ui/page/question_rule.js");
const copyOf = (value) => JSON.parse(JSON.stringify(value));

// Of two models, of which one has fewer layers and larger patches.
const factsOf = ({ model, fit }) => ({
  layers: model ? 3 : 6, heads: 4, rows: model ? 4 : 8, columns: fit ? 9 : 8, prefix: ["cls"], start: 0,
  predictions: [5, 1, 7].map((index) => ({ index, probability: 0.3 })),
});
for (const index of [0, 1]) panes.push({
  index, model: { labels: [..."abcdefgh"] }, hasToken: true, counterpart: (pane, query) => query,
  get view() { return store.state.views[index]; },
  get facts() { return this.view ? factsOf(this.view) : null; },
});

function begin(state = STATE, asked = [{}, {}]) {
  page.active = 0;
  choices.forgetChoices();
  store.replace(copyOf(state), copyOf(asked));
}

// ---- changes that the walks below do not make ----

const ALL = { layer: 1, head: 3, query: [2, 5], direction: "column" };
const CLASS = { target: 4, start_layer: 2, query: [2, 5] };
const LIKE = { target: { like: "example:dog", patch: [1, 1] }, query: [2, 5] };
const ofMethod = (method) => () => choices.chooseMethod(method);
/** @type {[string, { method?: string, asked?: any, own?: any }, (() => void), any][]} */
const CHANGES = [
  // What was there, what changes, and what is kept.
  ["a chosen square, and back through a map without squares", { asked: ALL }, () => {
    choices.chooseMethod("grad_cam");
    choices.chooseMethod("attention");
  }, ALL],
  ["likeness to a patch, another picture", { method: "relevance", asked: LIKE }, () => choices.choosePicture("dog"), { target: LIKE.target }],
  ["a patch of this picture, another picture", { method: "relevance", asked: { target: { patch: [1, 1] } } }, () => choices.choosePicture("dog"), {}],
  ["a text, another picture and model", { method: "relevance", asked: { target: { text: "a cat" } } }, () => {
    choices.choosePicture("dog");
    choices.chooseModel("small");
  }, { target: { text: "a cat" } }],
  ["likeness to a patch, another resolution", { method: "relevance", asked: LIKE }, () => choices.chooseInput({ resolution: 64 }),
    { target: { like: "example:dog" } }],
  ["another training step", { asked: ALL }, () => choices.chooseStep(20), ALL],
  ["two maps", { asked: ALL }, () => choices.chooseLayout("two"), ALL],
  ["what a small map answers, which was chosen", { own: { layer: 2, query: [3, 4] } }, () => {
    choices.chooseMap(0, "relevance", { query: [1, 1] });
    choices.chooseMethod("rollout");
  }, { query: [1, 1] }],
  ["a reload, another question", {}, () => {
    store.open({ ...STATE, views: [{ ...VIEW, parameters: { layer: 2, query: [3, 4] } }] }, [{ layer: 2, target: 3 }]);
    choices.chooseMethod("relevance");
  }, { target: 3 }],
  ["what the app corrects, another question", { method: "relevance", asked: CLASS }, () => {
    store.patchView(0, { parameters: { start_layer: 2 } });
    choices.chooseMethod("gradient_rollout");
  }, { start_layer: 2 }],
];

for (const [name, { method = "attention", asked = {}, own = {} }, change, kept] of CHANGES) {
  test(`of ${name}: ${JSON.stringify(kept)} is kept`, () => {
    const view = { ...VIEW, method, parameters: { ...own, ...asked } };
    begin({ ...STATE, views: [view] }, [asked, asked]);
    change();
    assert.deepEqual(store.state.views[0].parameters, kept);
  });
}

test("places of one picture are not those of another, nor heads those of another model", () => {
  const marks = { pins: [[1, 1]], patches_off: [[2, 2]], heads_off: [[0, 1]], probe_parameters: { query: [1, 1], layer: 2 } };
  const none = { pins: [], patches_off: [] };
  for (const [change, kept] of [
    [() => choices.chooseInput({ fit: "crop" }), { ...none, heads_off: [[0, 1]], probe_parameters: { layer: 2 } }],
    [() => choices.choosePicture("dog"), { ...none, heads_off: [], probe_parameters: { layer: 2 } }],
    [() => choices.chooseModel("small"), { ...none, heads_off: [], probe_parameters: {} }],
    [() => choices.chooseMethod("rollout"), marks],
  ]) {
    begin({ ...STATE, views: [{ ...VIEW, ...marks }] });
    change();
    const { pins, patches_off, heads_off, probe_parameters } = store.state.views[0];
    assert.deepEqual({ pins, patches_off, heads_off, probe_parameters }, kept);
  }
});

// ---- what is alike ----

// What was there in both views and of which layer, what changes, and which squares and layer are kept.
/** @type {[string, () => void, any][]} */
const ALIKE = [
  ["another picture in the second place", () => choices.choosePicture("dog"), { squares: [[1, 2], null], layer: 3 }],
  ["another picture in the first place", () => {
    page.active = 0;
    choices.choosePicture("dog");
  }, { squares: [null, [3, 4]], layer: 3 }],
  ["another fit of the second picture", () => choices.chooseInput({ fit: "crop" }), { squares: [[1, 2], null], layer: 3 }],
  ["another model, which both have then", () => choices.chooseModel("small"), { squares: [null, null], layer: null, models: ["small", "small"] }],
  ["another training step, which both have then", () => choices.chooseStep(20), { squares: [[1, 2], [3, 4]], layer: 3, steps: [20, 20] }],
  ["another layer", () => choices.showLayer(99), { squares: [[1, 2], [3, 4]], layer: 5 }],
  ["another square", () => choices.chooseToken(panes[1], [0, 0]), { squares: [null, [0, 0]], layer: 3 }],
  ["the same square once more", () => choices.chooseToken(panes[1], [3, 4]), { squares: [null, null], layer: 3 }],
  ["a square under the pointer", () => { page.hovered = { pane: panes[0], query: [5, 5] }; }, { squares: [[1, 2], [3, 4]], layer: 3 }],
  ["another question and back", () => {
    choices.chooseLayout("one");
    choices.chooseMethod("rollout");
    choices.chooseAlike();
  }, { squares: [[1, 2], [3, 4]], layer: 3 }],
];
for (const [name, change, { squares, layer, models = ["", ""], steps = [null, null] }] of ALIKE) test(`what is alike, of ${name}`, () => {
  const [first, second] = [{ ...VIEW, alike: [1, 2] }, { ...VIEW, picture: "own", alike: [3, 4] }];
  begin({ ...STATE, views: [first, second], layout: "alike", alike_layer: 3 });
  page.active = 1;
  const changed = store.onChange;
  // At no moment are there two models, of which nothing is alike.
  store.onChange = (before) => {
    assert.equal(new Set(store.state.views.map(({ model, step }) => `${model} ${step}`)).size, 1);
    changed(before);
  };
  change();
  store.onChange = changed;
  const { views, alike_layer, layout } = store.state;
  assert.deepEqual([views.map(({ alike }) => alike), alike_layer, layout], [squares, layer, "alike"]);
  assert.deepEqual([views.map(({ model }) => model), views.map(({ step }) => step)], [models, steps]);
});

test("what is alike is asked of a picture beside an example, which yields to one that was beside it before", () => {
  begin();
  choices.chooseAlike();
  assert.deepEqual(store.state.views.map(({ picture }) => picture), ["cat", "example:astronaut.jpg"]);
  // What comes next takes the second place.
  choices.choosePicture("dog");
  choices.chooseLayout("one");
  assert.deepEqual([store.state.views.length, store.state.views[0].parameters], [1, VIEW.parameters]);
  choices.chooseAlike();
  assert.deepEqual(store.state.views.map(({ picture }) => picture), ["cat", "dog"]);
  begin({ ...STATE, views: [{ ...VIEW, picture: "example:astronaut.jpg" }] });
  choices.chooseAlike();
  assert.equal(store.state.views[1].picture, "example:fish");
});

// ---- walks ----

/** Numbers from 0 to 1 that follow from a seed (mulberry32). */
function randomOf(seed) {
  return () => {
    seed = (seed + 0x6d2b79f5) | 0;
    let mixed = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

// What a visitor remembers: a diary for each map, of what they or the page chose (null is a default), and of what they went on
// to. A value is shown if nothing that came after it has ended it.
const END = { query: ["picture", "model", "fit"], target: ["picture", "model"], layer: ["model"], head: ["model"], start_layer: ["model"] };

function shown(diary, name) {
  const ends = ({ what, beside }) => END[name]?.includes(what)
    && !(beside && (["layer", "head", "start_layer"].includes(name) || (name === "target" && what === "picture")));
  const chosen = diary.findLastIndex(({ choice }) => choice && name in choice), value = diary[chosen]?.choice[name];
  // A token that is no square has no place.
  return diary.slice(chosen + 1).some(ends) && (name !== "query" || Array.isArray(value)) ? undefined : value;
}

/** The page's own choices end with the next method. */
const withMethod = (diary) => diary.filter((entry) => !entry.isPage);

class Visitor {
  constructor(seed) {
    this.random = randomOf(seed);
    begin();
    this.diaries = [[{ choice: { layer: 2, query: [3, 4] }, isPage: true }], []];
    this.past = [this.moment()];
    this.at = 0;
  }

  one(items) { return items[Math.floor(this.random() * items.length)]; }
  moment() { return copyOf({ state: store.state, asked: store.questions, diaries: this.diaries, active: page.active }); }
  get view() { return store.state.views[page.active]; }
  get isBeside() { return store.state.views.length === 2; }
  has(name) { return METHODS[this.view.method].slice(1).includes(name); }
  note(entry) { this.diaries[page.active] = [...this.diaries[page.active], { beside: this.isBeside, ...entry }]; }
  go(method) { if (this.view.method !== method) this.diaries[page.active] = withMethod(this.diaries[page.active]); }

  /** One step; back and forward go through the moments after the others. */
  steps = {
    method: () => { const method = this.one(Object.keys(METHODS)); this.go(method); choices.chooseMethod(method); },
    tab: () => { const method = choices.methodOf(this.one(["token", "target", "layers"])); this.go(method); choices.chooseMethod(method); },
    picture: () => {
      const picture = this.one(["cat", "dog"]);
      if (picture !== this.view.picture) this.note({ what: "picture" });
      choices.choosePicture(picture);
    },
    model: () => { this.note({ what: "model" }); choices.chooseModel(this.one(["", "small"])); },
    fit: () => { this.note({ what: "fit" }); choices.chooseInput({ fit: this.one([null, "crop"]) }); },
    square: () => {
      const query = this.one([[1, 2], [0, 0], [3, 3], "cls", "patches"]), pane = panes[page.active];
      store.state.views.forEach(({ method }, index) => {
        const choice = { query: query === "cls" ? null : query };
        if (METHODS[method].slice(1).includes("query")) this.diaries[index] = [...this.diaries[index], { choice }];
      });
      choices.chooseToken(pane, query);
    },
    target: () => {
      const target = this.one([1, 5, 7]);
      if (!METHODS[this.view.method].includes("target")) this.go(choices.methodOf("target"));
      this.note({ choice: { target } });
      choices.chooseTarget(target);
    },
    layer: () => {
      const { layers } = factsOf(this.view), layer = this.one([0, 1, layers - 1]);
      if (!this.has("layer")) this.go("attention");
      this.note({ choice: { layer: layer === layers - 1 ? null : layer } });
      choices.showLayer(layer);
    },
    head: () => {
      const head = this.one([0, 3, "max", "mean"]);
      if (!this.has("head")) this.go("attention");
      this.note({ choice: { head: head === "mean" ? null : head } });
      choices.showHead(head);
    },
    setting: () => {
      if (!this.has("start_layer")) return;
      this.note({ choice: { start_layer: 1 } });
      choices.setParameter("start_layer", 1);
    },
    point: () => { page.hovered = { pane: panes[0], query: [2, 2] }; },
    pin: () => choices.pinToken(panes[page.active], this.one([0, 5])),
    other: () => { if (this.isBeside) choices.activate(panes[1 - page.active]); },
    compare: () => {
      const [first] = store.state.views;
      if (this.isBeside) {
        this.hidden = copyOf({ first, diary: this.diaries[1] });
        return choices.chooseLayout("one");
      }
      choices.chooseLayout("two");
      if (JSON.stringify(this.hidden?.first) === JSON.stringify(first)) {
        this.diaries[1] = this.hidden.diary;
        return undefined;
      }
      // B begins with another head, which the page chooses.
      const { head } = store.state.views[1].parameters;
      this.diaries[1] = [...this.diaries[0], ...(head === first.parameters.head ? [] : [{ choice: { head }, isPage: true }])];
    },
    link: () => {
      this.hidden = null;
      const parameters = this.one([{ layer: 1, query: [3, 1] }, { query: [0, 2] }, {}]);
      choices.forgetChoices();
      store.open({ ...STATE, views: [{ ...VIEW, parameters }] });
      this.diaries = [[{ choice: parameters }], []];
    },
    reload: () => {
      const { state, asked } = this.moment();
      this.hidden = null;
      choices.forgetChoices();
      store.open(state, asked);
    },
  };

  step() {
    const names = Object.keys(this.steps), name = this.one([...names, "back", "forward"]);
    if (names.includes(name)) {
      this.steps[name]();
      this.past = [...this.past.slice(0, this.at + 1), this.moment()];
      this.at += 1;
    } else {
      this.at = Math.min(Math.max(this.at + (name === "back" ? -1 : 1), 0), this.past.length - 1);
      const { state, asked, diaries, active } = copyOf(this.past[this.at]);
      store.replace(state, asked);
      this.diaries = diaries;
      page.active = active;
    }
    return name;
  }
}

for (const seed of [1, 2, 3, 4, 5]) test(`300 steps show nothing that was neither chosen nor is a default (${seed})`, () => {
  const visitor = new Visitor(seed), names = [];
  let asked = 0;
  for (let count = 0; count < 300; count += 1) {
    names.push(visitor.step());
    store.state.views.forEach(({ method, parameters }, index) => {
      const own = METHODS[method].slice(1).map((name) => [name, shown(visitor.diaries[index], name)]);
      const expected = Object.fromEntries(own.filter(([, value]) => (value ?? null) !== null));
      assert.deepEqual({ ...parameters }, expected, `step ${count} of map ${index}, ${method}: ${names.slice(-6)}`);
      asked += Object.keys(expected).length;
    });
  }
  // The walk went through what it is about.
  assert.ok(asked > 100 && new Set(names).size === Object.keys(visitor.steps).length + 2);
});

// ---- what a picture opens on ----

const LOOK = { layer: 6, head: 5, query: [6, 10] };
for (const [name, view, asked, look, method, parameters] of [
  ["its far look", {}, {}, LOOK, "attention", LOOK],
  ["what is asked", { parameters: { head: 2 } }, { head: 2 }, LOOK, "attention", { head: 2 }],
  ["its far look after one that says why", { method: "relevance", parameters: {} }, {}, LOOK, "attention", LOOK],
  ["why, without a far look", {}, {}, null, "relevance", {}],
]) test(`a picture opens on ${name}`, () => {
  const opened = openingView({ ...VIEW, ...view }, asked, { look }, "relevance");
  assert.deepEqual([opened.method, opened.parameters], [method, parameters]);
});
