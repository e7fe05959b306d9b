// The page begins. A part of explorer.js, whose names it uses.

watch("value", () => { for (const each of [runs, films]) each.reply(props.value); });
element.explorer = {
  panes, store, runs, timings, latest, probes, describe,
  map: (query) => Array.from(panes[0].values(query) ?? []),
  settled: () => !isOpening && !runs.running && isSettled() && latest.version === store.version,
};
root.classList.toggle("vx-offline", OFFLINE);
for (const facts of props.value?.views ?? []) remember(analysisKey(store.state.views[0]), facts);
if (!OFFLINE && isLink(location.search + location.hash)) openLink(location.search + location.hash);
sync();
