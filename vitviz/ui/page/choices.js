// The visitor's choices as changes of the state.

import { hasClasses, withoutPlaces } from "./class_names.js";
import { defaultOf } from "./defaults.js";
import { STEPS } from "./guide_steps.js";
import { closeMenus } from "./menus.js";
import { activePane, activeView, models, page, panes, store, widenedPictures } from "./page.js";
import { METHODS } from "./settings.js";
import { analysisKey, isEqual, isPaired, MAX_PINS } from "./store.js";
import { queryOf } from "./token_names.js";
import { hasParameter, parametersOf, probeDefaultOf, probeParameter, tokenOf, valueOf } from "./tokens.js";

const PLAY_MS = 800;
// The method with which each question is answered first, where the page has it.
/** @type {Record<string, string>} */
const FIRST_METHODS = { token: "attention", target: "relevance", layers: "rollout" };
// Places of one picture or grid mean nothing on another.
const NO_PLACES = { pins: [], patches_off: [] };
/** The changes for another grid: no places, neither in the target of a map nor in the query of a probe. */
function onAnotherGrid() {
  const { parameters, probe_parameters } = activeView();
  const { target, ...others } = parameters, { query, ...probeOthers } = probe_parameters, carriedTarget = withoutPlaces(target);
  return {
    ...NO_PLACES,
    parameters: carriedTarget === null ? others : { ...others, target: carriedTarget },
    probe_parameters: Array.isArray(query) ? probeOthers : probe_parameters,
  };
}

/** @param {string} picture */
export function choosePicture(picture) {
  closeMenus();
  const { picture: previous, parameters: { target, ...others } } = activeView();
  // Of another picture, the model says another class, which is asked about; beside another map, both are about one.
  const isAnew = hasClasses(target) && !isPaired(store.state.layout);
  delete latestShared.target;
  // The target may keep a patch of another picture.
  store.patchView(page.active, {
    picture,
    frame: null,
    white: null,
    color_profile: null,
    ...(widenedPictures.has(previous) && { fit: null }),
    heads_off: [],
    ...onAnotherGrid(),
    ...(target?.like && { parameters: activeView().parameters }),
    ...(isAnew && { parameters: others }),
  });
}

/**
 * Another fit or resolution.
 * @param {any} change
 */
export const chooseInput = (change) => store.patchView(page.active, { ...change, ...onAnotherGrid() });

/**
 * Another training step; the last one is the default.
 * @param {number | null} step
 */
export function chooseStep(step) {
  store.patchView(page.active, { step: step === models[activeView().model]?.steps?.at(-1) ? null : step });
}

/**
 * Choose another model, without the classes of the previous one; its layers and heads stay only beside another map.
 * @param {string} model
 */
export function chooseModel(model) {
  closeMenus();
  const { method, parameters } = activeView();
  const isBeside = isPaired(store.state.layout);
  const carried = Object.entries(parameters).filter(([name, value]) => {
    const kind = parametersOf(method)[name]?.kind;
    if (kind === "layer" || kind === "head") return isBeside;
    return !(kind === "class" && (hasClasses(value) || withoutPlaces(value) === null));
  }).map(([name, value]) => [name, name === "target" ? withoutPlaces(value) : value]);
  if (hasClasses(latestShared.target)) delete latestShared.target;
  store.patchView(page.active, {
    model,
    step: null,
    fit: null,
    resolution: null,
    parameters: Object.fromEntries(carried),
    heads_off: [],
    ...NO_PLACES,
    probe_parameters: {},
  });
}

/**
 * Another method keeps layer, head, token and target, if it has these parameters.
 * @param {string} method
 */
export function chooseMethod(method) {
  returnHeadOfGuide();
  const { method: previous, parameters } = activeView();
  latestParameters.set(previous, parameters);
  Object.assign(latestShared, { query: parameters.query ?? latestShared.query, target: parameters.target ?? latestShared.target });
  latestMethods[METHODS[method].group] = method;
  const { query, target, ...others } = latestParameters.get(method) ?? {};
  // Why, and all layers, are asked about the answer first, whatever square asked before.
  const isAnew = METHODS[method].group !== "token" && METHODS[previous].group !== METHODS[method].group;
  const carried = Object.entries({ layer: parameters.layer, head: parameters.head, ...latestShared, ...(isAnew && { query: undefined }) });
  const shared = Object.fromEntries(carried.filter(([name, value]) => value !== undefined && hasParameter(method, name)));
  store.patchView(page.active, { method, parameters: { ...others, ...shared } });
}

// The latest parameters of each method, and the latest token and target, for methods without them on the way.
export const latestParameters = new Map();
/** @type {Record<string, any>} */
const latestShared = {};
// The latest method of each question.
/** @type {Record<string, string>} */
export const latestMethods = {};

/** Forget what maps before were chosen with: a link says all that it shows. */
export function forgetChoices() {
  latestParameters.clear();
  for (const latest of [latestShared, latestMethods]) for (const name of Object.keys(latest)) delete latest[name];
  hiddenPair = [];
  page.active = 0;
}

/**
 * @param {string} name
 * @param {any} value
 */
export function setParameter(name, value) {
  const record = parametersOf(activeView().method)[name];
  store.patchParameters(page.active, { [name]: value === defaultOf(record, activePane().facts) ? null : value });
}

/**
 * The method with which a question is answered first.
 * @param {string} group
 */
export function methodOf(group) {
  const first = FIRST_METHODS[group], others = Object.values(METHODS).filter((method) => method.group === group);
  return latestMethods[group] ?? (METHODS[first] ?? others[0]).name;
}

/** @param {number} index */
export function chooseTarget(index) {
  const { method } = activeView();
  if (!METHODS[method].about_a_class) chooseMethod(methodOf("target"));
  store.patchParameters(page.active, { target: index });
}

/** @param {number} layer */
export function showLayer(layer) {
  const { method } = activeView(), last = activePane().facts.layers - 1;
  if (!hasParameter(method, "layer")) chooseMethod("attention");
  setParameter("layer", Math.min(Math.max(layer, 0), last));
}

/**
 * Show a head of a layer, with the attention map if the current method has no single heads.
 * @param {number} layer
 * @param {Head} head
 */
export function showHeadOfLayer(layer, head) {
  const { method } = activeView();
  if (!hasParameter(method, "layer") || !hasParameter(method, "head")) chooseMethod("attention");
  setParameter("head", head);
  setParameter("layer", layer);
}

/**
 * @param {string} name
 * @param {any} value
 */
export function setProbeParameter(name, value) {
  const { probe, probe_parameters: { [name]: previous, ...others } } = activeView();
  const preset = probeDefaultOf(probeParameter(probe, (record) => record.name === name), activePane().facts);
  store.patchView(page.active, { probe_parameters: isEqual(value, preset) ? others : { ...others, [name]: value } });
}

/** @param {Head} head */
export function showHead(head) {
  if (typeof head === "number" && (head < 0 || head >= activePane().facts.heads)) return;
  if (!hasParameter(activeView().method, "head")) chooseMethod("attention");
  setParameter("head", head);
}

/**
 * @param {string} name
 * @param {any} value
 */
export function setLook(name, value) {
  store.patch({ [name]: value });
}

// Both views, while the layout shows only the first; once that has changed, the second has nothing to do with it.
/** @type {View[]} */
let hiddenPair = [];

/**
 * One map, alone or with a divider, or two maps, alone or with their difference.
 * @param {State["layout"]} layout
 */
export function chooseLayout(layout) {
  const { views: [first, second] } = store.state;
  const hidden = isEqual(hiddenPair[0], first) ? hiddenPair[1] : undefined;
  if (isPaired(layout)) return store.patch({ layout, views: [first, second ?? hidden ?? withNext(first, "head")] });
  if (second) hiddenPair = [first, second];
  page.active = 0;
  store.patch({ layout, views: [first] });
}

/**
 * Let the second map differ from the first in this alone: by the next head or layer, or by what is chosen then.
 * @param {string} name
 */
export function chooseOther(name) {
  page.active = 0;
  // A map of all heads or layers gives way to one that has single ones.
  if (`${name}s` in activePane().facts && !hasParameter(activeView().method, name)) chooseMethod("attention");
  if (name === "class" && !METHODS[activeView().method].about_a_class) chooseMethod(methodOf("target"));
  const [first] = store.state.views;
  page.active = 1;
  store.patch({ views: [first, withNext(first, name)] });
}

/**
 * A view with another head or layer, if its map is of one.
 * @param {View} view
 * @param {string} name
 */
function withNext(view, name) {
  const { facts } = panes[0], value = facts && valueOf(view, name, facts);
  if (value === undefined || !(`${name}s` in facts)) return view;
  const next = typeof value === "number" ? (value + 1) % /** @type {any} */ (facts)[`${name}s`] : 0;
  return { ...view, parameters: { ...view.parameters, [name]: next } };
}

/**
 * The share of the picture's width that the map covers.
 * @param {number} divider
 */
export const chooseDivider = (divider) => store.patch(divider < 1 ? { layout: "slide", divider } : { layout: "one" });

/**
 * Choose a token in both views, at the same place.
 * @param {Pane} pane
 * @param {Query} query
 */
export function chooseToken(pane, query) {
  activate(pane);
  page.hovered = null;
  const views = store.state.views.map((view, index) => {
    const counterpart = panes[index].facts && panes[index].view ? panes[index].counterpart(pane, query) : undefined;
    if (counterpart === undefined || !hasParameter(view.method, "query")) return view;
    const { query: previous, ...others } = view.parameters,
      isDefault =
        !panes[index].model.pools_by_attention &&
        !view.parameters.target?.patch &&
        isEqual(counterpart, panes[index].facts.prefix[0]) &&
        tokenOf(null, panes[index].facts, panes[index].model) === 0;
    return { ...view, parameters: counterpart === null || isDefault ? others : { ...others, query: counterpart } };
  });
  latestShared.query = query ?? undefined;
  store.patch({ views });
}

/**
 * @param {Pane} pane
 * @param {number} token
 */
export function pinToken(pane, token) {
  activate(pane);
  if (!pane.hasToken) return;
  const query = queryOf(token, pane.facts), { pins } = store.state.views[pane.index];
  const remaining = pins.filter((item) => !isEqual(item, query));
  store.patchView(pane.index, { pins: remaining.length < pins.length ? remaining : [...remaining, query].slice(-MAX_PINS) });
}

/** @param {any} pinIndex */
export function unpinToken(pinIndex) {
  store.patchView(page.active, { pins: activeView().pins.filter((_, index) => index !== pinIndex) });
}

/**
 * Make a pane the one of the controls; says whether it was another.
 * @param {Pane} pane
 */
export function activate(pane) {
  if (pane.index === page.active || !pane.facts) return false;
  page.active = pane.index;
  store.refresh();
  return true;
}

let playTimer = 0;

export const isPlaying = () => playTimer !== 0;

export function play() {
  const wasPlaying = isPlaying();
  clearInterval(playTimer);
  playTimer = wasPlaying ? 0 : setInterval(() => {
    if (!activePane().facts) return play();
    const { facts, view } = activePane();
    showLayer(((valueOf(view, "layer", facts) ?? -1) + 1) % facts.layers);
  }, PLAY_MS);
  store.refresh();
}

// Whether the guide has chosen a head, for as long as its steps are about one.
let isHeadOfGuide = false;
/** @type {{ key: string, shown: { method: string, parameters: Record<string, any> } } | null} */
let mapBeforeGuide = null;

/**
 * Go to a step of the guide and its method; null closes the guide.
 * @param {number | null} step
 */
export function goToStep(step) {
  const { method, isOfOneHead } = STEPS[step ?? -1] ?? {}, { method: shown, parameters } = activeView();
  if (step !== null && store.state.panel !== "guide")
    mapBeforeGuide = { key: analysisKey(activeView()), shown: { method: shown, parameters } };
  if (!isOfOneHead) returnHeadOfGuide();
  if (method && activeView().method !== method) chooseMethod(method);
  if (isOfOneHead && typeof valueOf(activeView(), "head", activePane().facts) !== "number") {
    isHeadOfGuide = true;
    setParameter("head", 0);
  }
  store.patch(step === null ? { panel: "", guide: 0 } : { panel: "guide", guide: step });
  // The tour leaves the map as it was, unless the visitor has gone on to another picture or model.
  if (step === null && mapBeforeGuide?.key === analysisKey(activeView()))
    store.patchView(page.active, mapBeforeGuide.shown);
}

/** Take back the head that the guide chose, unless the visitor has chosen another one since. */
function returnHeadOfGuide() {
  if (isHeadOfGuide && activeView().parameters.head === 0) store.patchParameters(page.active, { head: null });
  isHeadOfGuide = false;
}

/**
 * What the map of a target is about, or would be: a class by its number, another target, or nothing for the first guess.
 * @param {View} view
 */
export const nextTarget = ({ method, parameters: { target } }) =>
  target ?? (METHODS[method].group === "target" ? null : latestShared.target ?? null);

/**
 * The target of a measurement; for a model without classes, that of the latest map counts, too.
 * @param {View} view
 */
export function targetOf(view) {
  return view.parameters.target ?? (activePane().model?.labels.length ? null : latestShared.target ?? null);
}
