// The page begins.

import { describe, followHistory, isLink, isSettled, openLink } from "./address.js";
import { remember } from "./analyses.js";
import { element, root } from "./dom.js";
import { draw } from "./drawing.js";
import { listen, setTheme } from "./events.js";
import { sync } from "./explorer.js";
import { films, latest, page, panes, runs, store, timings } from "./page.js";
import { offerActions } from "./save.js";
import { backend, OFFLINE, START } from "./settings.js";
import { analysisKey } from "./store.js";
import { probes } from "./widgets.js";

store.onChange = sync;
page.draw = draw;
followHistory();
listen();
offerActions();

element.explorer = {
  panes, store, runs, timings, latest, probes, describe,
  map: (query) => Array.from(panes[0].values(query) ?? []),
  settled: () => !page.isOpening && !runs.running && isSettled() && latest.version === store.version,
};
root.classList.toggle("vx-offline", OFFLINE);
const theme = new URLSearchParams(location.search).get("__theme");
if (theme) setTheme(theme === "dark");
if (!OFFLINE) addEventListener("pagehide", () => { for (const each of [runs, films]) backend.end({ page: each.page }); });
for (const facts of START.views) remember(analysisKey(store.state.views[0]), facts);
if (!OFFLINE && isLink(location.search + location.hash)) openLink(location.search + location.hash);
store.refresh();
