// What the panels ask of the server. A part of explorer.js, whose names it uses.

async function inPanel(slot, key, body, done, say) {
  try {
    done(await runs.want(slot, key, body));
  } catch (error) {
    if (error.replaced) return;
    if (error.expired) return renew(panes[active]);
    say(error.stopped ? "Stopped." : reason(error));
  }
}

/** What is measured; of a model without classes also what a map was about before. */
function targetOf(view) {
  return view.parameters.target ?? (panes[active].model?.labels.length ? null : latestShared.target ?? null);
}

function compare() {
  const pane = panes[active], { uid } = pane.facts, target = targetOf(store.state.views[active]), parameters = {};
  for (const [method, said] of [...latestParameters, [pane.view.method, pane.view.parameters]]) {
    const { target: about, ...others } = said;
    parameters[method] = others;
  }
  const say = (text) => { find("compare-said").textContent = text; };
  inPanel("compare", JSON.stringify([uid, parameters, target]), { kind: "compare", uid, parameters, target }, (reply) => {
    const packs = Object.fromEntries(reply.maps.map(({ method, content }) => [method, readPack(fromBase64(content).buffer)]));
    if (pane.facts?.uid === uid) panels.showCompared(reply, packs, pane);
  }, say);
}

async function fetchPath(path) {
  const response = await fetch(addressOfFile({ path }));
  if (!response.ok) throw Error(`The server answers ${response.status}`);
  return response.arrayBuffer();
}

function rank() {
  const { uid } = panes[active].facts, target = targetOf(store.state.views[active]);
  inPanel("rank", JSON.stringify([uid, target]), { kind: "rank", uid, target }, (reply) => {
    panels.showRanked(reply);
    showControls();
  }, (text) => { find("switch-said").textContent = text; });
}

/** What becomes of the predictions without what is off. */
function wantSwitched() {
  const view = store.state.views[active], pane = panes[active];
  if (!pane.facts || pane.key !== analysisKey(view)) return;
  const { heads_off: heads, patches_off: patches } = view, target = targetOf(view), { uid } = pane.facts;
  const key = heads.length || patches.length ? JSON.stringify([uid, heads, patches, target]) : "";
  if (key === switched) return;
  switched = key;
  if (!key) {
    runs.drop("switch");
    return panels.showChanges(null);
  }
  inPanel("switch", key, { kind: "switch", uid, heads, patches, target }, (reply) => panels.showChanges(reply), (text) => {
    find("switch-said").textContent = text;
  });
}

/** What the chosen probe finds, while its panel is open. */
function wantProbe() {
  const { panel, views } = store.state, view = views[active], pane = panes[active];
  if (pane.facts && pane.key !== analysisKey(view)) return;
  const { probe, probe_parameters: parameters } = view, isAsked = panel === "probes" && !OFFLINE && pane.painter && !pane.model.probe_refusals[probe];
  const { uid } = pane.facts ?? {}, key = isAsked ? JSON.stringify([pane.index, uid, probe, parameters]) : "";
  if (key === probed) return;
  probed = key;
  if (!key) return runs.drop("probe");
  // What was found before the panel was closed.
  if (probes.found?.key === key) return;
  probes.waiting();
  inPanel("probe", key, { kind: "probe", uid, probe, parameters }, async (reply) => {
    const tensors = readPack(await fetchPath(reply.path));
    if (key === probed) probes.showFound(reply, tensors, pane, key);
  }, (text) => probes.failed(text));
}

function probeAgain() {
  probed = "";
  wantProbe();
}
