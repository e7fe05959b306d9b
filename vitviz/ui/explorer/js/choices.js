// What a visitor chooses, as changes of the state. A part of explorer.js, whose names it uses.

const PLAY_EVERY = 450;
// The map that a click on a prediction shows, where the one before is not about a class.
const ABOUT_A_CLASS = "relevance";
// What is at a place of one picture, or of one grid of patches, means nothing on another.
const nothingPlaced = { pins: [], patches_off: [] };
/** Nor does a patch that a map is about likeness to, or that a probe compares with others. */
function onAnotherGrid() {
  const { parameters, probe_parameters } = store.state.views[active];
  const { target, ...others } = parameters, { query, ...asked } = probe_parameters, kept = withoutPlaces(target);
  return { ...nothingPlaced, parameters: kept === null ? others : { ...others, target: kept }, probe_parameters: Array.isArray(query) ? asked : probe_parameters };
}

function choosePicture(picture) {
  const { target } = store.state.views[active].parameters;
  // A patch of another picture than the one that is looked at stays what it is.
  store.patchView(active, { picture, frame: null, ...onAnotherGrid(), ...(target?.like && { parameters: store.state.views[active].parameters }) });
}

async function takePicture(file) {
  const found = await uploadedPicture(file);
  if (!found) return;
  const id = `upload:${++uploaded}`;
  uploads.set(id, found);
  choosePicture(id);
}

/** A picture as an upload; null where it could not be, which is said. */
async function uploadedPicture(file) {
  notify("");
  const megabytes = (bytes) => `${(bytes / 2 ** 20).toFixed(0)} MB`;
  const most = file.type.startsWith("video/") ? Math.min(SETTINGS.max_clip_bytes, SETTINGS.max_upload_bytes) : SETTINGS.max_upload_bytes;
  if (file.size > most) return notify(`${file.name}: ${megabytes(file.size)}; expected at most ${megabytes(most)}`) ?? null;
  try {
    return { path: (await upload(file)).path, orig_name: file.name };
  } catch (error) {
    return notify(`${file.name} could not be uploaded: ${error.message ?? error}`) ?? null;
  }
}

/** A picture that the map is about likeness to. */
async function likePicture(file) {
  const found = await uploadedPicture(file), answer = found && await server.picture({ upload: found });
  if (!answer) return;
  if (!answer.id) return notify(answer.refused ?? "The server does not answer");
  if (!answer.id.startsWith("example:")) liked.set(answer.id, { name: answer.name, url: URL.createObjectURL(file) });
  if (hasParameter(store.state.views[active].method, "target")) setParameter("target", { like: answer.id });
}

/** Another model: what belongs to the layers, heads and classes of the one before does not mean the same there. */
function chooseModel(model) {
  find("models").open = false;
  const { method, parameters } = store.state.views[active];
  const kept = Object.entries(parameters).filter(([name, value]) => {
    const kind = parametersOf(method)[name]?.kind;
    return kind !== "layer" && kind !== "head" && !(kind === "class" && (isOfClasses(value) || withoutPlaces(value) === null));
  }).map(([name, value]) => [name, name === "target" ? withoutPlaces(value) : value]);
  if (isOfClasses(latestShared.target)) delete latestShared.target;
  store.patchView(active, { model, step: null, fit: null, resolution: null, parameters: Object.fromEntries(kept), heads_off: [], ...nothingPlaced, probe_parameters: {} });
}

async function openOwn({ files, hub, overrides }) {
  notify("");
  if (!files.length === !hub.trim()) return notify("A checkpoint of your own: choose its file, or write its name on the hub.");
  try {
    const sent = [];
    for (const file of files) sent.push({ path: (await upload(file)).path, orig_name: file.name });
    const id = `own-new:${++uploaded}`;
    uploads.set(id, { files: sent, hub, overrides });
    chooseModel(id);
  } catch (error) {
    notify(`The checkpoint could not be uploaded: ${error.message ?? error}`);
  }
}

/** Another method keeps the token and the target, where it has them. */
function chooseMethod(method) {
  const { parameters } = store.state.views[active], before = latestParameters.get(method) ?? {};
  latestParameters.set(store.state.views[active].method, parameters);
  const shared = Object.fromEntries(["query", "target"].filter((name) => name in parameters && hasParameter(method, name)).map((name) => [name, parameters[name]]));
  const layers = Object.fromEntries(["layer", "head"].filter((name) => name in parameters && hasParameter(method, name)).map((name) => [name, parameters[name]]));
  const { query, target, ...own } = before;
  const carried = { query: parameters.query ?? latestShared.query, target: parameters.target ?? latestShared.target };
  for (const name of Object.keys(carried)) if (carried[name] !== undefined && hasParameter(method, name)) shared[name] = carried[name];
  Object.assign(latestShared, carried);
  store.patchView(active, { method, parameters: { ...own, ...layers, ...shared } });
}

// What each method was asked with, and the token and target that those without them do not carry.
const latestParameters = new Map(), latestShared = {};

function setParameter(name, value) {
  const { view, facts } = panes[active], record = parametersOf(store.state.views[active].method)[name];
  const first = record.kind === "layer" && record.default < 0 ? facts.layers + record.default : record.default;
  store.patchParameters(active, { [name]: value === first ? null : value });
}

function chooseTarget(index) {
  const { method } = store.state.views[active];
  if (!METHODS[method].about_a_class) chooseMethod(ABOUT_A_CLASS);
  store.patchParameters(active, { target: index });
}

function showLayer(layer) {
  const { method } = store.state.views[active], last = panes[active].facts.layers - 1;
  if (!hasParameter(method, "layer")) chooseMethod("attention");
  setParameter("layer", Math.min(Math.max(layer, 0), last));
}

/** A head of a layer, on the canvas: the attention map where the one before is of no single head. */
function showHeadOfLayer(layer, head) {
  const { method } = store.state.views[active];
  if (!hasParameter(method, "layer") || !hasParameter(method, "head")) chooseMethod("attention");
  setParameter("head", head);
  setParameter("layer", layer);
}

function setProbeParameter(name, value) {
  const { probe, probe_parameters: { [name]: before, ...others } } = store.state.views[active];
  const first = defaultOf(PROBES[probe].parameters.find((each) => each.name === name), panes[active].facts);
  store.patchView(active, { probe_parameters: same(value, first) ? others : { ...others, [name]: value } });
}

function showHead(head) {
  if (typeof head === "number" && (head < 0 || head >= panes[active].facts.heads)) return;
  if (!hasParameter(store.state.views[active].method, "head")) chooseMethod("attention");
  setParameter("head", head);
}

function setLook(name, value) {
  if (name === "layout" && (value === "two" || value === "difference") && store.state.views.length < 2) {
    return store.patch({ layout: value, views: [store.state.views[0], copyOf(second ?? store.state.views[0])] });
  }
  if (name === "layout" && value !== "two" && value !== "difference" && store.state.views.length > 1) {
    second = store.state.views[1];
    active = 0;
    return store.patch({ layout: value, views: store.state.views.slice(0, 1) });
  }
  store.patch({ [name]: value });
}

// The second view, while only the first is shown.
let second = null;

/** Both maps are asked about the same place. */
function chooseToken(pane, query) {
  activate(pane);
  hovered = null;
  if (find("switch-patches").checked && store.state.panel === "switches" && Array.isArray(query)) return switchPatch(query);
  const views = store.state.views.map((view, index) => {
    const linked = panes[index].facts && panes[index].view ? panes[index].linked(pane, query) : undefined;
    if (linked === undefined || !hasParameter(view.method, "query")) return view;
    const { query: before, ...others } = view.parameters, first = !panes[index].model.pools_by_attention && !view.parameters.target?.patch && same(linked, panes[index].facts.prefix[0]) && tokenOf(null, panes[index].facts, panes[index].model) === 0;
    return { ...view, parameters: linked === null || first ? others : { ...others, query: linked } };
  });
  latestShared.query = query ?? undefined;
  store.patch({ views });
}

function switchPatch(place) {
  const { patches_off } = store.state.views[active], others = patches_off.filter((each) => !same(each, place));
  store.patchView(active, { patches_off: others.length < patches_off.length ? others : [...others, place] });
}

function pin(pane, token) {
  activate(pane);
  if (!pane.hasToken) return;
  const query = queryOf(token, pane.facts), { pins } = store.state.views[pane.index];
  const others = pins.filter((each) => !same(each, query));
  store.patchView(pane.index, { pins: others.length < pins.length ? others : [...others, query].slice(-MAX_PINS) });
}

function unpin(place) {
  store.patchView(active, { pins: store.state.views[active].pins.filter((_, index) => index !== place) });
}

/** Make a pane the one that the controls are about. */
function activate(pane) {
  if (pane.index === active || !pane.facts) return;
  active = pane.index;
  showControls();
  wantProbe();
  ask();
}

function play() {
  const isPlaying = playing !== 0;
  clearInterval(playing);
  playing = isPlaying ? 0 : setInterval(() => {
    if (!element.isConnected || !panes[active].facts) return play();
    const { facts, view } = panes[active];
    showLayer(((valueOf(view, "layer", facts) ?? -1) + 1) % facts.layers);
  }, PLAY_EVERY);
  showControls();
}

/** A step of the guide, with the map that it is about; null closes the guide. */
function goToStep(step) {
  const [, , , method, isOfOneHead] = STEPS[step] ?? [];
  if (method && store.state.views[active].method !== method) chooseMethod(method);
  if (isOfOneHead && typeof valueOf(store.state.views[active], "head", panes[active].facts) !== "number") setParameter("head", 0);
  store.patch(step === null ? { panel: "", guide: 0 } : { panel: "guide", guide: step });
}
