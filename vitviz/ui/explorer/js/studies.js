// The requests of the panels. A part of explorer.js, whose names it uses.

async function runInPanel(slot, key, body, done, say) {
  try {
    done(await runs.request(slot, key, body));
  } catch (error) {
    if (error.replaced) return;
    if (error.expired) return renew(activePane());
    say(error.stopped ? "Stopped." : reason(error));
  }
}

/** The target of a measurement; for a model without classes, that of the latest map counts, too. */
function targetOf(view) {
  return view.parameters.target ?? (activePane().model?.labels.length ? null : latestShared.target ?? null);
}

function compare() {
  const pane = activePane(), { uid } = pane.facts, target = targetOf(activeView()), parameters = {};
  for (const [method, settings] of [...latestParameters, [pane.view.method, pane.view.parameters]]) {
    const { target: about, ...others } = settings;
    parameters[method] = others;
  }
  const say = (text) => { find("compare-said").textContent = text; };
  runInPanel("compare", JSON.stringify([uid, parameters, target]), { kind: "compare", uid, parameters, target }, (reply) => {
    const packs = Object.fromEntries(reply.maps.map(({ method, content }) => [method, readPack(fromBase64(content).buffer)]));
    if (pane.facts?.uid === uid) panels.showComparison(reply, packs, pane);
  }, say);
}

function rank() {
  const { uid } = activePane().facts, target = targetOf(activeView());
  runInPanel("rank", JSON.stringify([uid, target]), { kind: "rank", uid, target }, (reply) => {
    panels.showRanking(reply);
    showControls();
  }, (text) => { find("switch-said").textContent = text; });
}

/** Request the predictions without the heads and patches that are off. */
function requestSwitched() {
  const view = activeView(), pane = activePane();
  if (!pane.facts || pane.key !== analysisKey(view)) return;
  const { heads_off: heads, patches_off: patches } = view, target = targetOf(view), { uid } = pane.facts;
  const key = heads.length || patches.length ? JSON.stringify([uid, heads, patches, target]) : "";
  if (key === switchKey) return;
  switchKey = key;
  if (!key) {
    runs.drop("switch");
    return panels.showChanges(null);
  }
  runInPanel("switch", key, { kind: "switch", uid, heads, patches, target }, (reply) => panels.showChanges(reply), (text) => {
    find("switch-said").textContent = text;
  });
}

/** Request the findings of the view's probe while its panel is open. */
function requestProbe() {
  const { panel, views } = store.state, view = views[active], pane = activePane();
  if (pane.facts && pane.key !== analysisKey(view)) return;
  const { probe, probe_parameters: parameters } = view, isAsked = panel === "probes" && !OFFLINE && pane.painter && !pane.model.probe_refusals[probe];
  const { uid } = pane.facts ?? {}, key = isAsked ? JSON.stringify([pane.index, uid, probe, parameters]) : "";
  if (key === probeKey) return;
  probeKey = key;
  if (!key) return runs.drop("probe");
  // The findings are those from before the panel was closed.
  if (probes.result?.key === key) return;
  probes.waiting();
  runInPanel("probe", key, { kind: "probe", uid, probe, parameters }, async (reply) => {
    const tensors = readPack(await backend.made(reply.address));
    if (key === probeKey) probes.showResult(reply, tensors, pane, key);
  }, (text) => probes.failed(text));
}

function probeAgain() {
  probeKey = "";
  requestProbe();
}
