// Requests for analyses and their files, as the state needs them.

import { setHeadline, showLead } from "./answer.js";
import { chooseModel } from "./choices.js";
import { createButton } from "./dom.js";
import { computedBy, offeredMethods } from "./map_sources.js";
import { openMenu } from "./menus.js";
import { notify, notifyToo, reasonOf, retryOf, setState } from "./messages.js";
import { fromBase64 } from "./packs.js";
import {
  activePane, analyses, missing, models, newPictures, page, panes, requests, shownPanes, store, uploads, widenedPictures,
} from "./page.js";
import { serverRemedies } from "./places.js";
import { openingView } from "./question_rule.js";
import { backend } from "./settings.js";
import { analysisKey, copyOf, INPUT_FIELDS, isEqual, MAX_ANALYSES } from "./store.js";
import { openAs } from "./uploads.js";

// An analysis that expires this often in this many milliseconds is not requested again.
const MAX_RENEWALS = 3, RENEWAL_MS = 30000;

/**
 * @param {Pane} pane
 * @param {View} view
 */
export function requestAnalysis(pane, view) {
  const key = analysisKey(view), otherPane = panes[1 - pane.index], reason = missing.get(view.model);
  if (pane.alone === key) return;
  if (reason !== undefined) return showAlone(pane, view, reason);
  if (analyses.has(key)) return showKnownAnalysis(pane, view, analyses.get(key));
  if (otherPane.key === key) return showKnownAnalysis(pane, view, otherPane.facts);
  if (pane.pendingKey === key) return;
  pane.pendingKey = key;
  // It would wait for what takes long about the previous one.
  for (const slots of [`map ${pane.index} `, ...(pane === activePane() ? ["rank", "compare"] : [])]) requests.keepOnly(slots, []);
  const sentState = copyOf(store.state), { index } = pane;
  const body = {
    kind: "analyze",
    state: legalState(sentState),
    index,
    is_new: newPictures.has(view.picture),
    own: uploads.get(view.model) ?? null,
  };
  requests.request(`analysis ${index}`, key, body).then(
    (/** @type {any} */ reply) => applyReply(pane, key, sentState, reply),
    (/** @type {any} */ error) => error.replaced ? clearPending(pane, key) : restoreView(pane, key, error),
  );
}

/**
 * A state without names of checkpoints that the server does not know yet.
 * @param {State} state
 */
export function legalState(state) {
  const views = state.views.map((view, index) => ({
    ...view,
    ...(uploads.has(view.model) && { model: panes[index].model?.id ?? "" }),
  }));
  return { ...state, views };
}

/**
 * @param {Pane} pane
 * @param {string | null} key
 */
function clearPending(pane, key) {
  if (pane.pendingKey === key) pane.pendingKey = null;
}

/**
 * @param {Pane} pane
 * @param {string} key
 * @param {any} sentState
 * @param {any} reply
 */
function applyReply(pane, key, sentState, reply) {
  clearPending(pane, key);
  const isNew = newPictures.delete(reply.state.views[pane.index].picture);
  Object.assign(models, reply.models);
  const view = store.state.views[pane.index];
  if (!view || analysisKey(view) !== key) return store.refresh();
  const fresh = reply.state.views[pane.index], [facts] = reply.views,
    input = Object.fromEntries(INPUT_FIELDS.map((name) => [name, fresh[name]]));
  if (isNew && view.fit === null && fresh.fit !== null) widenedPictures.add(fresh.picture);
  // A newer choice of the map wins; `describe` corrects what is illegal for this analysis.
  const next = openingOf(pane.index, isEqual(view, sentState.views[pane.index]) ? fresh : { ...view, ...input }, facts);
  rememberAnalysis(analysisKey(next), facts);
  loadAnalysis(pane, facts, next);
  store.patchView(pane.index, next);
  if (reply.notes?.length) notifyToo(reply.notes.join(" "));
}

/**
 * Say in place of the answer why there is none, and offer the way back.
 * @param {string} reason
 */
function showMissing(reason) {
  const back = createButton({ className: "vx-list", textContent: "Use the model of this page", onclick: () => chooseModel("") });
  setHeadline(["No map without its model. ", back]);
  showLead(reason);
}

/**
 * Show a picture without a map: no other model answers for the one that is missing.
 * @param {Pane} pane
 * @param {View} view
 * @param {string} text
 */
function showAlone(pane, view, text) {
  clearPending(pane, pane.pendingKey);
  pane.showAlone(view, text);
  setState("ready");
  if (pane.index === 0) showMissing(text);
  const key = analysisKey(view), body = { kind: "picture", state: legalState(store.state), index: pane.index };
  requests.request(`picture ${pane.index}`, key, body).then(
    (/** @type {any} */ { picture }) => pane.alone === key && pane.drawAlone(picture),
    (/** @type {any} */ error) => error.replaced || notifyToo(reasonOf(error)),
  );
}

/**
 * Restore the view of a failed request.
 * @param {Pane} pane
 * @param {string} key
 * @param {any} error
 */
function restoreView(pane, key, error) {
  clearPending(pane, key);
  const view = store.state.views[pane.index];
  if (!view || analysisKey(view) !== key) return;
  if (error.expired) return store.refresh();
  if (!pane.facts) return error.final === undefined ? pane.setStatus(reasonOf(error)) : showAlone(pane, view, reasonOf(error));
  const { state: { alike_layer, panel }, questions } = pane.previous, views = store.state.views.with(pane.index, pane.view);
  // The way back leads past what cannot be shown.
  history.replaceState(null, "");
  // Of what the server no longer has, the page shows what it holds.
  pane.key = analysisKey(pane.view);
  store.patch({ alike_layer, panel: store.state.panel || panel, views }, store.questions.with(pane.index, questions[pane.index]));
  store.refresh();
  const own = uploads.get(view.model), names = (own && error.architectures) ?? [];
  const remedies = names.map((/** @type {string} */ name) => ({ label: `Open as ${name}`, act: () => openAs(own, name) }));
  // What a message asks for is said there.
  if (own) openMenu("own");
  // Of what was found wrong, the same request would say the same.
  remedies.push(...serverRemedies(newPictures.get(view.picture)));
  if (error.final === undefined) remedies.push(retryOf(() => store.patchView(pane.index, view)));
  const reason = names.length
    ? `${error.message.split(":")[0]}: its file does not state which of these networks it is, and they compute differently.`
    : reasonOf(error);
  notify(`${reason} The previous view is still shown.`, remedies);
}

/**
 * @param {string} key
 * @param {Facts} facts
 */
export function rememberAnalysis(key, facts) {
  analyses.delete(key);
  analyses.set(key, facts);
  while (analyses.size > MAX_ANALYSES) analyses.delete(analyses.keys().next().value);
}

/**
 * @param {Pane} pane
 * @param {View} view
 * @param {Facts} facts
 */
function showKnownAnalysis(pane, view, facts) {
  clearPending(pane, pane.pendingKey);
  requests.drop(`analysis ${pane.index}`);
  const next = openingOf(pane.index, view, facts);
  loadAnalysis(pane, facts, next);
  store.patchView(pane.index, next);
}

/**
 * A picture that the visitor has just chosen opens on what was found of it, unless the method was chosen, too.
 * @param {number} index
 * @param {View} view
 * @param {Facts} facts
 */
function openingOf(index, view, facts) {
  if (page.chosenPicture !== view.picture) return view;
  page.chosenPicture = "";
  if (![page.ownMethod, "attention"].includes(view.method)) return view;
  page.openedPicture = view.picture;
  const saysWhy = facts.predictions.length && offeredMethods(facts, models[view.model]).some(({ name }) => name === "relevance");
  const next = openingView(view, store.questions[index], facts, saysWhy ? "relevance" : "attention");
  page.ownMethod = next.method;
  return next;
}

/**
 * @param {Pane} pane
 * @param {Facts} facts
 * @param {View} view
 */
function loadAnalysis(pane, facts, view) {
  setState("loading");
  pane.load(facts, models[facts.model], view);
  pane.previous = { state: store.state, questions: store.questions };
}

/**
 * Request a pane's expired analysis again.
 * @param {Pane} pane
 */
export function renewAnalysis(pane) {
  const now = performance.now();
  pane.renewals = pane.renewals.filter((when) => now - when < RENEWAL_MS);
  if (pane.renewals.length >= MAX_RENEWALS || !backend.computes) {
    // Without a painter, nothing else shows the error.
    if (!pane.painter) {
      pane.setStatus("The picture cannot be fetched.");
      setState("failed");
    }
    return;
  }
  pane.renewals.push(now);
  forgetAnalysis(pane);
  store.refresh();
}

/**
 * Forget an analysis that the server no longer has.
 * @param {Pane} pane
 */
function forgetAnalysis(pane) {
  for (const [key, facts] of analyses) if (facts.uid === pane.facts?.uid) analyses.delete(key);
  for (const shownPane of panes) if (shownPane.facts && shownPane.facts.uid === pane.facts?.uid) shownPane.key = "";
}

/**
 * A file of an analysis; of a map that takes long, in the order of all that does.
 * @param {Pane} pane
 * @param {Facts} facts
 * @param {any} options
 * @param {((file: ArrayBuffer) => void)=} onUnfinished
 */
export async function fetchFile(pane, facts, { name, map }, onUnfinished) {
  if (!map) return backend.file(facts.uid, name);
  const body = { uid: facts.uid, ...map };
  if (!backend.computes || computedBy(map.method, Object.keys(map.parameters), facts) !== "run") return backend.map(body);
  const { content } = await requests.request(`map ${pane.index} ${name}`, facts.uid + name, { kind: "map", ...body }, onUnfinished);
  return fromBase64(content).buffer;
}

/**
 * Drop the requests for maps that a pane no longer needs.
 * @param {Pane} pane
 * @param {string[]} names
 */
export function dropMaps(pane, names) {
  requests.keepOnly(`map ${pane.index} `, names.map((name) => `map ${pane.index} ${name}`));
}

export function retryFailed() {
  setState("loading");
  for (const pane of shownPanes()) {
    pane.renewals = [];
    if (!pane.painter) forgetAnalysis(pane);
    pane.packs?.retry();
  }
  store.refresh();
}

/**
 * @param {string} slot
 * @param {string} key
 * @param {any} body
 * @param {any} done
 * @param {any} say
 * @param {any=} showUnfinished receives what the reply already has
 */
export async function runInPanel(slot, key, body, done, say, showUnfinished) {
  try {
    const reply = await requests.request(slot, key, body, showUnfinished);
    // A reply about a picture that is shown no more would stand beside another one's numbers.
    if (shownPanes().some(({ facts }) => facts?.uid === body.uid)) done(reply);
  } catch (/** @type {any} */ error) {
    if (error.replaced) return;
    if (error.expired) return renewAnalysis(activePane());
    say(error.stopped ? "Stopped." : reasonOf(error));
  }
}
