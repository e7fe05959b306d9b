// The page begins.

import { describe, followHistory, isLink, isSettled, openLink } from "./address.js";
import { rememberAnalysis } from "./analyses.js";
import { element, findAll, root } from "./dom.js";
import { draw } from "./drawing.js";
import { listen, setTheme } from "./events.js";
import { sync } from "./explorer.js";
import { showBusy } from "./messages.js";
import { films, latest, page, panes, requests, store, timings } from "./page.js";
import { offerActions } from "./save.js";
import { backend, START } from "./settings.js";
import { analysisKey } from "./store.js";
import { probes } from "./widgets.js";

store.onChange = sync;
page.draw = draw;
followHistory();
listen();
offerActions();

/** @type {any} */ (element).explorer = {
  backend, panes, difference: () => page.difference, store, requests, timings, latest, probes, describe,
  map: (/** @type {Query} */ query) => Array.from(panes[0].values(query) ?? []),
  settled: () => !page.isOpening && !requests.running && isSettled() && latest.version === store.version,
};
root.classList.toggle("vx-offline", !backend.computes);
for (const part of findAll("[data-needs]")) part.classList.toggle("vx-lacking", !backend.has(part.dataset.needs));
backend.watchLoading((step) => showBusy("weights", step && { ...step, slot: "weights" }));
const theme = new URLSearchParams(location.search).get("__theme");
if (theme) setTheme(theme === "dark");
// A saved page has little beside its picture, and room for it.
if (!backend.computes) for (const fold of findAll(".vx-fold")) fold.open = true;
if (backend.computes) addEventListener("pagehide", () => { for (const each of [requests, films]) backend.end({ page: each.page }); });
for (const facts of START.views) rememberAnalysis(analysisKey(store.state.views[0]), facts);
if (backend.has("links") && isLink(location.search + location.hash)) openLink(location.search + location.hash);
store.refresh();
