// The page begins.

import { describe, followHistory, isLink, isSettled, openLink, setOpening } from "./address.js";
import { rememberAnalysis } from "./analyses.js";
import { element, findAll, root } from "./dom.js";
import { draw } from "./drawing.js";
import { listen, setTheme } from "./events.js";
import { sync } from "./explorer.js";
import { showBusy } from "./messages.js";
import { films, latest, newPictures, page, panes, requests, store, timings } from "./page.js";
import { goToOtherPlace, isDeviceChosen, takeHandover } from "./places.js";
import { offerActions } from "./save.js";
import { backend, START } from "./settings.js";
import { analysisKey } from "./store.js";
import { onTouch } from "./touches.js";
import { notifyOnceShown, takePicture } from "./uploads.js";
import { panels, probes } from "./widgets.js";

// A page that nobody touches fetches the layers for the pointer after this time.
const UNTOUCHED_MS = 5000;
const link = location.search + location.hash, opensLink = backend.has("links") && isLink(link);
// Whatever a link shows, the server has it.
if (isDeviceChosen() && !opensLink) goToOtherPlace();
else begin();

function begin() {
  store.onChange = sync;
  page.draw = draw;
  followHistory();
  listen();
  offerActions();

  /** @type {any} */ (element).explorer = {
    backend, panes, difference: () => page.difference, store, requests, timings, latest, probes, panels, describe,
    map: (/** @type {Query} */ query) => Array.from(panes[0].values(query) ?? []),
    settled: () => !page.isOpening && !requests.isBusy && isSettled() && latest.version === store.version,
  };
  root.classList.toggle("vx-offline", !backend.computes);
  for (const part of findAll("[data-needs]")) part.classList.toggle("vx-lacking", !backend.has(part.dataset.needs));
  backend.watchLoading((step) => showBusy("weights", step && { ...step, slot: "weights" }));
  const theme = new URLSearchParams(location.search).get("__theme");
  if (theme) setTheme(theme === "dark");
  // A saved page has little beside its picture, and room for it.
  if (!backend.computes) for (const fold of findAll(".vx-fold")) fold.open = true;
  if (backend.computes) addEventListener("pagehide", () => { for (const each of [requests, films]) backend.end({ page: each.page }); });
  const fetchAll = () => {
    page.isTouched = true;
    for (const pane of panes) pane.requestFiles();
  };
  onTouch(window, () => page.isTouched || fetchAll());
  setTimeout(fetchAll, UNTOUCHED_MS);
  START.views.forEach((facts, index) => rememberAnalysis(analysisKey(store.state.views[index]), facts));
  const handover = takeHandover();
  if (handover) goOn(handover);
  else if (opensLink) openLink(link, history.state?.questions);
  store.refresh();
}

/**
 * Go on with what the page of the other place showed.
 * @param {Promise<import("./places.js").Handover>} handover
 */
async function goOn(handover) {
  setOpening(true);
  const { state, questions, pictures, given, notes } = await handover;
  try {
    const names = /** @type {Record<string, string>} */ ({});
    for (const [name, file] of Object.entries(pictures)) {
      names[name] = (await backend.upload(file)).picture;
      newPictures.set(names[name], file);
    }
    store.replace({ ...state, views: state.views.map((view) => ({ ...view, picture: names[view.picture] ?? view.picture })) }, questions);
  } catch (/** @type {any} */ error) {
    notes.push(`The picture could not be handed on: ${error.message}.`);
  }
  setOpening(false);
  store.refresh();
  for (const pane of panes) pane.requestFiles();
  if (given && !(await takePicture(given))) return;
  const place = backend.has("device") ? "Your pictures stay on this device now." : "Your pictures go to the server now.";
  // The server has got them already.
  const hasOwn = backend.has("device") && Object.keys(pictures).length > 0;
  const rest = hasOwn ? ["What the server has got of them, it deletes some hours after its last use."] : [];
  notifyOnceShown([place, ...rest, ...notes].join(" "));
}
