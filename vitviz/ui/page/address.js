// The state as the address of the page, and back.

import { rememberAnalysis } from "./analyses.js";
import { chooseAlike, forgetChoices } from "./choices.js";
import { root } from "./dom.js";
import { openMenu } from "./menus.js";
import { notify, notifyToo, retryOf } from "./messages.js";
import { randomId } from "./numbers.js";
import { isAlike, latest, missing, models, page, panes, requests, shownPanes, store } from "./page.js";
import { withHostEntries } from "./places.js";
import { backend, METHODS, PROBES } from "./settings.js";
import { analysisKey, isEqual, withChanges } from "./store.js";
import { panels } from "./widgets.js";

// The address follows a change after this delay; browsers refuse more than a few changes a second.
const DESCRIBE_MS = 300;
// Menus, which a link can open; they are no part of the state, so that what is asked goes on beneath them.
const MENUS = ["save", "model"];
let describeTimer = 0;

export function describeSoon() {
  clearTimeout(describeTimer);
  if (backend.computes) describeTimer = setTimeout(() => describe().catch(() => {}), DESCRIBE_MS);
}

export const isSettled = () => shownPanes().every(({ facts, key, alone, index }) =>
  [facts && key, alone].includes(analysisKey(store.state.views[index] ?? {})));

/** The link and the lines of Python of the state, which is corrected if it is not legal. */
export async function describe() {
  if (latest.version === store.version || !isSettled()) return latest;
  // Without its model, a view stays as its link has it.
  if (shownPanes().some(({ alone }) => alone)) return Object.assign(latest, { version: store.version });
  const { version } = store, uids = shownPanes().map(({ facts }) => facts.uid);
  const answer = await backend
    .describe({ state: store.state, uids })
    .catch((error) => ({ failed: error.message, final: error.final, expired: error.expired }));
  if (version !== store.version || answer.expired) return latest;
  if (answer.failed) return answer.final ? restoreLegal(answer.failed) : latest;
  Object.assign(latest, { link: answer.link, python: answer.python, version, state: answer.state });
  showAddress();
  if (!isEqual(answer.state, store.state)) store.replace(answer.state);
  if (answer.notes?.length) notify(answer.notes.join(" "));
  return latest;
}

/**
 * Replace a state that the server refuses by the last legal one.
 * @param {any} refused
 */
function restoreLegal(refused) {
  if (!latest.state || isEqual(latest.state, store.state)) return latest;
  store.replace(latest.state);
  notify(refused);
  return latest;
}

/**
 * A view without parameters that its method or probe does not have, such as those of the previous one.
 * @param {View} view
 */
function withOwnSettings(view) {
  const withRecords = (/** @type {any} */ settings, /** @type {any} */ records) =>
    Object.fromEntries(Object.entries(settings).filter(([name]) => records.some((/** @type {any} */ each) => each.name === name)));
  return {
    ...view,
    parameters: withRecords(view.parameters, METHODS[view.method].parameters),
    probe_parameters: withRecords(view.probe_parameters, PROBES[view.probe].parameters),
  };
}

/**
 * The address of a link.
 * @param {string} link
 */
export const addressOf = (link) => withHostEntries(location.pathname, link);

/** Add a history entry once the page shows something else; its address follows later. */
export function showEntry() {
  if (page.isOpening || !backend.computes || !isSettled()) return;
  const { views, layout } = store.state, key = JSON.stringify([layout, ...views.map((view) => [analysisKey(view), view.method])]);
  const entry = history.state?.vitviz ? history.state : null, isNew = entry !== null && entry.place !== key;
  const id = isNew || !entry ? randomId() : entry.vitviz;
  visited.set(id, { state: store.state, questions: store.questions });
  if (entry?.place !== key) writeHistory(isNew ? "pushState" : "replaceState", { ...history.state, vitviz: id, place: key });
}

function showAddress() {
  // Of what the address names, the visitor has not asked all, which a reload knows from here.
  if (!page.isOpening) writeHistory("replaceState", { ...history.state, questions: store.questions }, addressOf(latest.link));
}

/**
 * @param {"pushState" | "replaceState"} way
 * @param {any} entry
 * @param {string=} address
 */
function writeHistory(way, entry, address) {
  try {
    history[way](entry, "", address);
  } catch {
    // Some browsers refuse many changes in a short time; the next one will pass.
  }
}

/**
 * Set whether a link, or what another page handed on, is being opened; until then, the page does not show its state.
 * @param {boolean} value
 */
export function setOpening(value) {
  page.isOpening = value;
  root.setAttribute("aria-busy", String(value));
}

/**
 * Open a link, and ask what it names, or what is known to have been asked where its address was written.
 * @param {string} link
 * @param {Record<string, any>[]=} known
 */
export function openLink(link, known) {
  const entry = store.state;
  // What is shown then takes the place of this entry, which may stand for a picture that is gone.
  writeHistory("replaceState", null);
  forgetChoices();
  setOpening(true);
  // Afterwards, whatever happened, the address follows the state.
  const end = () => {
    setOpening(false);
    latest.version = -1;
    store.refresh();
    for (const pane of panes) pane.requestFiles();
  };
  requests.request("open", link, { kind: "open", link }).then((/** @type {any} */ reply) => {
    Object.assign(models, reply.models);
    reply.views.forEach((/** @type {Facts & { missing?: string }} */ facts, /** @type {number} */ index) => {
      const view = reply.state.views[index];
      if (facts.missing) missing.set(view.model, facts.missing);
      else rememberAnalysis(analysisKey(view), facts);
    });
    // The visitor's choices in the meantime win.
    const merged = withChanges(reply.state, entry, store.state), menu = MENUS.includes(merged.panel) ? merged.panel : "";
    store.open({ ...merged, views: merged.views.map(withOwnSettings), panel: menu ? "" : merged.panel }, known);
    // What is alike in a picture and itself is no question: such a link names no second one.
    if (isAlike() && new Set(store.state.views.map(analysisKey)).size === 1) chooseAlike();
    openMenu(menu);
    end();
    if (reply.notes?.length) notifyToo(reply.notes.join(" "));
    if (reply.state.panel === "compare") panels.compare();
  }, (/** @type {any} */ error) => {
    end();
    const remedies = error.final === undefined ? [retryOf(() => openLink(link, known))] : [];
    if (!error.replaced) notify(`This link cannot be opened: ${error.message}`, remedies);
  });
}

/** @param {string} text */
export const isLink = (text) => [...new URLSearchParams(text.split("#")[0])].some(([name]) => !name.startsWith("__")) || text.includes("#");

export function followHistory() {
  addEventListener("popstate", (event) => {
    const { state, questions } = visited.get(event.state?.vitviz) ?? {};
    if (state) store.replace(state, questions);
    else if (backend.has("links")) openLink(location.search + location.hash, event.state?.questions);
  });
}

const visited = new Map();
