// The parts of the page, and the consequences of a change of the state.

const root = element.querySelector(".vx"), find = (name) => element.querySelector(`.vx-${name}`);
const { [DIFFERENCE]: differenceColours, ...colours } = readColours(SETTINGS.colours);
const timings = { hovers: [], changes: [] };
const models = { ...START.models };
// Analyses by their keys; uploads by the names that the state has for them until the server names them.
const analyses = new Map(), uploads = new Map();
const visitedStates = new Map();
// Name and url of pictures that were uploaded for likeness, by id.
const likedPictures = new Map();
const latest = { link: "", python: "", version: -1, state: START.state };
const paneHooks = { hover, choose: chooseToken, pin, onChange: paneChanged, fetchFile, onRequest: dropMaps, isOpening: () => isOpening };
const panes = [...element.querySelectorAll(".vx-pane")].map((part, index) => new Pane(part, index, paneHooks));
const store = new Store(START.state, sync);
// A video may take minutes; the rest of the page does not wait for it.
const [runs, films] = ["runs", "films"].map((lane) => new Runs(backend, (state) => showBusy(lane, state)));
const source = new Source(), controls = new Controls(), panels = new Panels(), probes = new Probes(), guide = new Guide();
// `hovered` is a pane and its query under the pointer; the other pane shows its counterpart.
let active = 0, hovered = null, hoveredCell = null, sheet = null, frameRequest = 0, moveTime = 0, playTimer = 0, uploadCount = 0;
let typedDigits = { text: "", when: 0 }, describeTimer = 0, isOpening = false, switchKey = "", probeKey = "";

const activePane = () => panes[active], activeView = () => store.state.views[active];

/** "empty", "loading", "ready" or "failed", for the style sheet and for tests. */
function setState(name, canRetry = true) {
  root.dataset.state = name;
  find("retry").hidden = name !== "failed" || !canRetry;
}

/** After every change of the state: request what it needs, and draw what is there. */
function sync(previous) {
  const started = performance.now(), { views, layout } = store.state;
  // A message belongs to the last choice.
  if (previous && !isEqual(previous.views, views)) notify("");
  root.dataset.layout = layout;
  panes[1].element.hidden = !isDouble();
  if (active >= views.length) active = 0;
  for (const pane of panes) {
    const view = pane.index === 0 || isDouble() ? views[pane.index] : null;
    if (!view) {
      runs.drop(`analysis ${pane.index}`);
      runs.keepOnly(`map ${pane.index} `, []);
    } else if (pane.key !== analysisKey(view)) requestAnalysis(pane, view);
    else {
      runs.drop(`analysis ${pane.index}`);
      pane.element.classList.remove("vx-stale");
      if (!isEqual(pane.view, view)) pane.setView(view);
    }
  }
  showControls();
  showEntry();
  requestSwitched();
  requestProbe();
  describeSoon();
  requestDraw();
  timings.changes.push(performance.now() - started);
}

function showControls() {
  const { state } = store, view = state.views[active], pane = activePane();
  source.show(view, pane.key === analysisKey(view) ? pane.facts : null, pane.model);
  panels.show(state, active, pane.facts, pane.model);
  if (pane.facts) probes.show(view, pane.facts, pane.model);
  if (pane.facts && pane.key === analysisKey(view)) controls.show(state, active, pane.facts, pane.model, playTimer !== 0);
}
