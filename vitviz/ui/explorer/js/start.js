// The page begins. A part of explorer.js, whose names it uses.

element.explorer = {
  panes, store, runs, timings, latest, probes, describe,
  map: (query) => Array.from(panes[0].values(query) ?? []),
  settled: () => !isOpening && !runs.running && isSettled() && latest.version === store.version,
};
root.classList.toggle("vx-offline", OFFLINE);
const theme = new URLSearchParams(location.search).get("__theme");
if (theme) setTheme(theme === "dark");
if (!OFFLINE) addEventListener("pagehide", () => { for (const { page } of [runs, films]) backend.end({ page }); });
for (const facts of START.views) remember(analysisKey(store.state.views[0]), facts);
if (!OFFLINE && isLink(location.search + location.hash)) openLink(location.search + location.hash);
sync();
