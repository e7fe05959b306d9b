// The visitor's choices as changes of the state.

import { defaultOf } from "./defaults.js";
import { closeMenus } from "./menus.js";
import { crossFade } from "./motion.js";
import { clamped } from "./numbers.js";
import { activePane, activeView, isAlike, isHiding, missing, models, page, panes, store, widenedPictures } from "./page.js";
import { changed } from "./question_rule.js";
import { backend, METHODS, SETTINGS, START } from "./settings.js";
import { layerOfFeatures } from "./pane.js";
import { analysisKey, isEqual, isPaired, MAX_PINS } from "./store.js";
import { queryOf } from "./token_names.js";
import { hasParameter, parametersOf, probeDefaultOf, probeParameter, tokenOf, valueOf } from "./tokens.js";

const PLAY_MS = 800;
// The picture with which the first one is compared, where it is there: a cat and an astronaut have faces.
const OTHER_EXAMPLE = "example:astronaut.jpg";
// The method with which each question is answered first, where the page has it.
/** @type {Record<string, string>} */
const FIRST_METHODS = { token: "attention", target: "relevance", layers: "rollout" };
/** @param {string} picture */
export function choosePicture(picture) {
  closeMenus();
  if (picture === activeView().picture) return;
  const fit = widenedPictures.has(activeView().picture) ? null : activeView().fit;
  page.chosenPicture = isPaired(store.state.layout) ? "" : picture;
  store.change(page.active, { picture, frame: null, white: null, color_profile: null, fit }, page.isCovered ? { panel: "" } : {});
  page.isCovered = false;
}

/**
 * Another fit or resolution.
 * @param {any} change
 */
export const chooseInput = (change) => store.change(page.active, change);

// Features of two models cannot be compared.
const viewsOfModel = () => (isAlike() ? store.state.views.map((_, index) => index) : [page.active]);

/**
 * Another training step; the last one is the default.
 * @param {number | null} step
 */
export function chooseStep(step) {
  const indices = viewsOfModel(), next = step === models[activeView().model]?.steps?.at(-1) ? null : step;
  store.patch({ views: store.state.views.map((view, index) => (indices.includes(index) ? { ...view, step: next } : view)) });
}

/** @param {string} model */
export function chooseModel(model) {
  closeMenus();
  // One that was missing is looked for again.
  missing.delete(model);
  activePane().alone = "";
  store.change(viewsOfModel(), { model, step: null, fit: null, resolution: null }, { alike_layer: null });
  if (!activePane().facts) store.refresh();
}

/** @param {string} method */
export function chooseMethod(method) {
  page.ownMethod = "";
  latestMethods[METHODS[method].group] = method;
  store.change(page.active, { method });
}

/**
 * Show a map that was shown small, and ask what it answers.
 * @param {number} index of its view
 * @param {string} method
 * @param {Record<string, any>} parameters
 */
export function chooseMap(index, method, parameters) {
  page.active = index;
  chooseMethod(method);
  const others = Object.fromEntries(METHODS[method].parameters.map(({ name }) => [name, null]));
  store.ask(store.state.views.map((_, index) => (index === page.active ? { ...others, ...parameters } : undefined)));
}

// The latest method of each question.
/** @type {Record<string, string>} */
export const latestMethods = {};

/** Forget what was chosen before: a link says all that it shows. */
export function forgetChoices() {
  for (const name of Object.keys(latestMethods)) delete latestMethods[name];
  store.questions = [{}, {}];
  hidden = { views: [], question: {} };
  scaleBefore = replaced = null;
  page.active = 0;
  page.ownMethod = page.heldQuantity = "";
}

/**
 * The visitor asks for a parameter of the map of the controls.
 * @param {string} name
 * @param {any} value
 */
export function setParameter(name, value) {
  const preset = defaultOf(parametersOf(activeView().method)[name], activePane().facts);
  const change = { [name]: value === preset ? null : value };
  store.ask(store.state.views.map((_, index) => (index === page.active ? change : undefined)));
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
  setParameter("target", index);
}

/**
 * Show a layer's map, also where the picture alone is painted on.
 * @param {number} layer
 */
export function showLayer(layer) {
  const { method } = activeView(), last = activePane().facts.layers - 1;
  if (isAlike()) return backend.computes && store.patch({ alike_layer: clamped(layer, 0, last) });
  if (isHiding()) store.patch({ panel: "" });
  if (!hasParameter(method, "layer")) chooseMethod("attention");
  setParameter("layer", clamped(layer, 0, last));
}

/** The layer that is shown; of a map of all of them, none. */
export const layerShown = () => (isAlike() ? layerOfFeatures(panes[0]) : valueOf(activeView(), "layer", activePane().facts));

/**
 * Show a head of a layer, with the attention map if the current method has no single heads.
 * @param {{ layer: number, head: Head }} cell
 */
export function showHeadOfLayer({ layer, head }) {
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

// The kind of scale that was chosen before one was held.
/** @type {ScaleName | null} */
let scaleBefore = null;

/**
 * Draw every further map of a quantity on this scale; null releases it.
 * @param {FittedScale | null} fitted
 * @param {string} quantity
 */
export function holdScale(fitted, quantity) {
  const { scale, low } = store.state;
  if (fitted && low === null) scaleBefore = scale;
  page.heldQuantity = fitted ? quantity : "";
  store.patch(fitted ? { scale: fitted.name, low: fitted.low, high: fitted.high } : { scale: scaleBefore, low: null, high: null });
}

/**
 * Release a scale that is held for another quantity: links and lines of Python have one for whatever they show.
 * @param {string} quantity of the first map
 */
export function keepScaleFor(quantity) {
  // A link does not say for which it is held: for that of its first map.
  page.heldQuantity ||= quantity;
  if (quantity !== page.heldQuantity) holdScale(null, "");
}

// Both views, and what is asked of the second, while the layout shows only the first; once that has changed, the second has
// nothing to do with it.
/** @type {{ views: View[], question: Record<string, any> }} */
let hidden = { views: [], question: {} };

/**
 * One map, alone or with a divider, or two maps, alone or with their difference.
 * @param {State["layout"]} layout
 */
export function chooseLayout(layout) {
  const { state: { views }, questions } = store, [first] = views;
  if (isPaired(layout)) {
    if (views.length > 1) return store.patch({ layout });
    // A saved page has no maps of a second picture.
    const isKnown = isEqual(hidden.views[0], first) && (backend.computes || analysisKey(hidden.views[1]) === analysisKey(first));
    return store.patch(
      { layout, views: isKnown ? hidden.views : [first, withNext(first, "head")] },
      [questions[0], isKnown ? hidden.question : questions[0]],
    );
  }
  restoreFirst();
  if (views.length > 1) hidden = { views: [store.state.views[0], views[1]], question: questions[1] };
  page.active = 0;
  store.patch({ layout, views: store.state.views.slice(0, 1) });
}

// The first map before another one took its place, which has what is compared, and what was asked of it.
/** @type {{ view: View, question: Record<string, any>, instead: View } | null} */
let replaced = null;

/** Show the first map again that was there before the comparison, unless it was changed since. */
export function restoreFirst() {
  const { state: { views }, questions } = store;
  if (replaced && isEqual(views[0], replaced.instead))
    store.patch({ views: [replaced.view, ...views.slice(1)] }, [replaced.question, ...questions.slice(1)]);
  replaced = null;
}

/**
 * Let the second map differ from the first in this alone: by the next head or layer, or by what is chosen then.
 * @param {string} name
 */
export function chooseOther(name) {
  page.active = 0;
  restoreFirst();
  const [view] = store.state.views, [question] = store.questions;
  // A map of all heads or layers gives way to one that has single ones.
  if (`${name}s` in activePane().facts && !hasParameter(activeView().method, name)) chooseMethod("attention");
  if (name === "class" && !METHODS[activeView().method].about_a_class) chooseMethod(methodOf("target"));
  const [first] = store.state.views;
  replaced = { view, question, instead: first };
  page.active = 1;
  store.patch({ views: [first, withNext(first, name)] }, [store.questions[0], store.questions[0]]);
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

/** Show what is alike in the picture and another one: that which was beside it before, or an example. */
export function chooseAlike() {
  const { state: { views: [first, beside], panel }, questions } = store;
  const isOther = (/** @type {View | undefined} */ view) =>
    view && view.picture !== first.picture && view.model === first.model && view.step === first.step;
  const examples = SETTINGS.examples.filter(({ id }) => id !== first.picture),
    example = examples.find(({ id }) => id === OTHER_EXAMPLE) ?? examples[0];
  const other = [beside, hidden.views[1], START.state.views[1]].find(isOther) ?? (example && backend.computes
    && changed(first, questions[0], { picture: example.id, frame: null, white: null, color_profile: null, fit: null }, true, METHODS).view);
  // What is chosen, or dropped anywhere, goes there.
  page.active = other ? 1 : 0;
  page.hovered = null;
  store.patch(
    { layout: "alike", panel: panel === "switches" ? "" : panel, views: other ? [first, other] : [first] }, [questions[0], questions[0]],
  );
}

/**
 * Keep the square of a pane to which what is alike is lit; the same again, or null, lets it go.
 * @param {Pane} pane
 * @param {Query} query
 */
export function chooseSquare(pane, query) {
  const { views } = store.state, cell = Array.isArray(query) && !isEqual(views[pane.index].alike, query) ? query : null;
  page.hovered = null;
  store.patch({ views: views.map((view, index) => ({ ...view, alike: index === pane.index ? cell : null })) });
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
  if (isAlike()) return chooseSquare(pane, query);
  page.hovered = null;
  store.ask(store.state.views.map((view, index) => {
    const { facts, model, view: current } = panes[index],
      counterpart = facts && current ? panes[index].counterpart(pane, query) : undefined;
    if (counterpart === undefined || !hasParameter(view.method, "query")) return undefined;
    const isDefault =
      !model.pools_by_attention &&
      !view.parameters.target?.patch &&
      isEqual(counterpart, facts.prefix[0]) &&
      tokenOf(null, facts, model) === 0;
    return { query: isDefault ? null : counterpart };
  }));
}

/**
 * @param {Pane} pane
 * @param {number} token
 */
export function pinToken(pane, token) {
  activate(pane);
  if (!pane.hasToken || isAlike()) return;
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

/** Play the frames of a clip, or else the layers, until another question is asked. */
export function play() {
  const wasPlaying = isPlaying();
  clearInterval(playTimer);
  let hasBegun = false;
  playTimer = wasPlaying ? 0 : setInterval(() => {
    const { facts, key } = activePane(), view = activeView();
    if (!facts || (hasBegun && view.frame === null && (isHiding() || layerShown() === undefined))) return play();
    // It waits for what it has asked for.
    if (key !== analysisKey(view)) return;
    hasBegun = true;
    crossFade(activePane());
    if (view.frame !== null && facts.clip) store.patchView(page.active, { frame: (view.frame + 1) % facts.clip.frames });
    else showLayer(((layerShown() ?? -1) + 1) % facts.layers);
  }, PLAY_MS);
  store.refresh();
}
