// The parts of the page, and what follows from a change of the state.

const find = (name) => element.querySelector(`.vx-${name}`);
const { [DIFFERENCE]: differenceColours, ...colours } = readColours(SETTINGS.colours);
const measured = { hovers: [], changes: [] };
const models = { ...props.value?.models };
// Analyses by their keys, and what was uploaded under the names that the state has for it meanwhile.
const known = new Map(), uploads = new Map();
const visited = new Map();
// Pictures that were uploaded to be like, by their ids: name, url.
const liked = new Map();
const latest = { link: "", python: "", version: -1, state: props.value?.state ?? SETTINGS.state };
const hooks = { hover, choose: chooseToken, pin, changed: paneChanged, fetchFile, wanted, isOpening: () => opening };
const panes = [...element.querySelectorAll(".vx-pane")].map((part, index) => new Pane(part, index, hooks));
const store = new Store(props.value?.state ?? SETTINGS.state, sync);
// A video may take minutes, for which nothing else of the page waits.
const [runs, films] = ["runs", "films"].map((lane) => new Runs((request) => trigger("run", request), server, (state) => showBusy(lane, state)));
const source = new Source(element, SETTINGS, {
  picture: takePicture, example: choosePicture, model: chooseModel, own: openOwn, failed: notify,
  frame: (frame) => store.patchView(active, { frame }),
  step: (step) => store.patchView(active, { step: step === models[store.state.views[active].model]?.steps?.at(-1) ? null : step }),
  seen: (change) => store.patchView(active, { ...change, ...onAnotherGrid() }), target: chooseTarget,
});
const controls = new Controls(element, Object.keys(colours), liked, { method: chooseMethod, parameter: setParameter, look: setLook, play, like: likePicture, failed: notify });
const panels = new Panels(element, {
  opened: (name, isOpen) => store.patch({ panel: isOpen ? name : "" }), compare, rank, allOn: () => store.patchView(active, { heads_off: [], patches_off: [] }),
  heads: (heads_off) => store.patchView(active, { heads_off }), switching: () => ask(), cardOpened: chooseMethod, target: targetOf,
  look: lookOfPanels,
});
const probes = new Probes(element, {
  probe: (probe) => store.patchView(active, { probe, probe_parameters: {} }), parameter: setProbeParameter, head: showHeadOfLayer, again: probeAgain,
  look: lookOfPanels,
});
const guide = new Guide(element, { step: goToStep });
// `hovered` is a pane's query; the other pane shows the one that is linked to it.
let active = 0, hovered = null, cell = null, sheet = null, asked = 0, moved = 0, playing = 0, uploaded = 0;
let typed = { text: "", when: 0 }, describing = 0, opening = false, switched = "", probed = "";

/** "empty", "loading", "ready" or "failed", for the style sheet and for tests. */
function setState(name, canRetry = true) {
  element.querySelector(".vx").dataset.state = name;
  find("retry").hidden = name !== "failed" || !canRetry;
}

/** After every change of the state: ask for what it needs, and draw what is there. */
function sync(before) {
  const started = performance.now(), { views, layout } = store.state;
  // What was said of the choice before goes with the next one.
  if (before && !same(before.views, views)) notify("");
  element.querySelector(".vx").dataset.layout = layout;
  panes[1].element.hidden = !isDouble();
  if (active >= views.length) active = 0;
  for (const pane of panes) {
    const view = pane.index === 0 || isDouble() ? views[pane.index] : null;
    if (!view) {
      runs.drop(`analysis ${pane.index}`);
      runs.keep(`map ${pane.index} `, []);
    } else if (pane.key !== analysisKey(view)) wantAnalysis(pane, view);
    else {
      runs.drop(`analysis ${pane.index}`);
      pane.element.classList.remove("vx-stale");
      if (!same(pane.view, view)) pane.follow(view);
    }
  }
  showControls();
  showEntry();
  wantSwitched();
  wantProbe();
  describeSoon();
  ask();
  measured.changes.push(performance.now() - started);
}

function showControls() {
  const { state } = store, view = state.views[active], pane = panes[active];
  source.show(view, pane.key === analysisKey(view) ? pane.facts : null, pane.model);
  panels.show(state, active, pane.facts, pane.model);
  if (pane.facts) probes.show(view, pane.facts, pane.model);
  if (pane.facts && pane.key === analysisKey(view)) controls.show(state, active, pane.facts, pane.model, playing !== 0);
}
