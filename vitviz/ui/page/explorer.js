// The consequences of a change of the state.

import { describeSoon, showEntry } from "./address.js";
import { dropMaps, fetchFile, renewAnalysis, requestAnalysis } from "./analyses.js";
import { activate, chooseToken, isPlaying, pinToken } from "./choices.js";
import { findAll, root } from "./dom.js";
import { hoverToken } from "./events.js";
import { hidePatch, isHidden } from "./hiding.js";
import { notify } from "./messages.js";
import { activePane, isAlike, isDouble, isHiding, page, panes, requestDraw, requests, store, timings } from "./page.js";
import { Pane } from "./pane.js";
import { analysisKey, isEqual } from "./store.js";
import { beside, comparison, controls, guide, panels, probes, questions, source, unless } from "./widgets.js";

const hooks = {
  hover: hoverToken,
  pin: pinToken,
  fetchFile,
  // Of two pictures whose squares are compared, a click on the other keeps its square at once.
  activate: (/** @type {Pane} */ pane) => activate(pane) && !isAlike(),
  choose: chooseToken,
  hide: hidePatch,
  isHiding,
  isHidden,
  onRequest: dropMaps,
  onLoad: clearFindings,
  onChange: paneChanged,
  isOpening: () => page.isOpening,
};
const [first] = findAll(".vx-pane");
const [second, third] = ["Map B", "A minus B"].map((name) => {
  const copy = /** @type {HTMLElement} */ (first.cloneNode(true));
  copy.hidden = true;
  copy.querySelector("canvas")?.setAttribute("aria-label", `${name}, patch by patch.`);
  copy.querySelector(".vx-chips")?.setAttribute("aria-label", `Tokens that are not patches, ${name}`);
  return copy;
});
first.after(second, third);
panes.push(new Pane(first, 0, hooks), new Pane(second, 1, hooks));
// On the difference of two maps, which has the first one's tokens, the pointer acts as on the first.
const ofFirst = Object.fromEntries(["hover", "pin", "choose", "hide"].map((name) => [
  name, (/** @type {Pane} */ _, /** @type {any[]} */ ...given) => /** @type {any} */ (hooks)[name](panes[0], ...given),
]));
page.difference = new Pane(third, 2, { ...hooks, ...ofFirst, activate: () => false });

/**
 * After every change of the state: request what it needs, and draw what is there.
 * @param {any} previous
 */
export function sync(previous) {
  const started = performance.now(), { views, layout } = store.state;
  // A message belongs to the last choice.
  if (previous && !isEqual(previous.views, views)) notify("");
  root.dataset.layout = layout !== "alike" ? layout : isDouble() ? "two" : "one";
  const isRecompared = previous && !isEqual([previous.layout, previous.alike_layer], [layout, store.state.alike_layer]);
  second.hidden = !isDouble();
  third.hidden = layout !== "difference";
  if (page.active >= views.length) page.active = 0;
  for (const pane of panes) {
    const view = pane.index === 0 || isDouble() ? views[pane.index] : null;
    if (!view) {
      requests.drop(`analysis ${pane.index}`);
      requests.keepOnly(`map ${pane.index} `, []);
    } else if (pane.key !== analysisKey(view)) requestAnalysis(pane, view);
    else {
      requests.drop(`analysis ${pane.index}`);
      if (!isEqual(pane.view, view)) pane.setView(view);
      else if (isRecompared) pane.requestFiles();
      pane.previous = { state: store.state, questions: store.questions };
    }
  }
  update();
  timings.changes.push(performance.now() - started);
}

/** Show what is there, and request what follows from it. */
function update() {
  showEntry();
  showControls();
  panels.requestChanges();
  probes.request();
  unless.request();
  describeSoon();
  requestDraw();
  // The frame of a notebook has a name, by which Python hears what is chosen (`explorer.selection`).
  if (window.name.startsWith("vitviz-")) parent.postMessage({ [window.name]: store.state.views[page.active] }, "*");
}

function showControls() {
  const { state } = store, view = state.views[page.active], pane = activePane();
  for (const { element, key, alone, index } of panes) {
    element.classList.toggle("vx-alone", Boolean(alone));
    element.classList.toggle("vx-stale", ![key, alone].includes(analysisKey(state.views[index] ?? {})));
  }
  source.show(view, pane.key === analysisKey(view) ? pane.facts : null, pane.model);
  panels.show(state, pane.facts, pane.model);
  comparison.show(state);
  beside.show(state);
  guide.show(state, pane.facts, pane.model);
  if (pane.facts) probes.show(view, pane.facts, pane.model);
  if (pane.facts && pane.key === analysisKey(view)) questions.show(view, pane.facts, pane.model);
  if (pane.facts && pane.key === analysisKey(view)) controls.show(state, page.active, pane.facts, pane.model, isPlaying());
}

/**
 * Forget what was found about the previous analysis of a pane.
 * @param {Pane} pane
 */
function clearFindings(pane) {
  if (pane.index === page.active || pane.index === 0 || pane === panels.comparison?.pane) {
    panels.clear();
    probes.clear();
    panels.requested = probes.requested = "";
  }
  page.hovered = page.hoveredCell = null;
}

/**
 * A file or the picture of a pane is loaded, or has failed with an error.
 * @param {Pane} pane
 * @param {any} error
 */
function paneChanged(pane, error) {
  if (error?.expired) return renewAnalysis(pane);
  if (error?.stopped) notify("Stopped. To see a map, choose another method or other parameters.");
  update();
}
