// What is drawn of the state, what is asked of the server for it, and every event.

const PLAY_EVERY = 450;
// Digits typed so soon after one another are one number.
const DIGITS_WITHIN = 700;
// The address follows when nothing has changed for so long; browsers refuse more than a few changes a second.
const DESCRIBE_AFTER = 300;
// An analysis that leaves the server so often in so many milliseconds is not asked for once more.
const MAX_RENEWALS = 3, RENEWALS_WITHIN = 30000;
const QUANTITIES = { attention: "attention weight", rollout: "share of the rollout" };
// The map that a click on a prediction shows, where the one before is not about a class.
const ABOUT_A_CLASS = "relevance";

const find = (name) => element.querySelector(`.vx-${name}`);
const { [DIFFERENCE]: differenceColours, ...colours } = readColours(SETTINGS.colours);
const measured = { hovers: [], changes: [] };
const models = { ...props.value?.models };
// Analyses by their keys, and what was uploaded under the names that the state has for it meanwhile.
const known = new Map(), uploads = new Map();
const visited = new Map();
// Pictures that were uploaded to be like, by their ids: name, url.
const liked = new Map();
const latest = { link: "", python: "", version: -1 };
const hooks = { hover, choose: chooseToken, pin, changed: paneChanged, fetchFile, wanted, isOpening: () => opening };
const panes = [...element.querySelectorAll(".vx-pane")].map((part, index) => new Pane(part, index, hooks));
const store = new Store(props.value?.state ?? SETTINGS.state, sync);
const runs = new Runs((request) => trigger("run", request), server, showBusy);
const source = new Source(element, SETTINGS, {
  picture: takePicture, example: choosePicture, model: chooseModel, own: openOwn, failed: notify,
  step: (step) => store.patchView(active, { step: step === models[store.state.views[active].model]?.steps?.at(-1) ? null : step }),
  seen: (change) => store.patchView(active, { ...change, ...onAnotherGrid() }), target: chooseTarget,
});
const controls = new Controls(element, Object.keys(colours), liked, { method: chooseMethod, parameter: setParameter, look: setLook, play, like: likePicture, failed: notify });
const panels = new Panels(element, {
  opened: (name, isOpen) => store.patch({ panel: isOpen ? name : "" }), compare, rank, allOn: () => store.patchView(active, { heads_off: [], patches_off: [] }),
  heads: (heads_off) => store.patchView(active, { heads_off }), switching: () => ask(), cardOpened: chooseMethod, target: targetOf,
  look: () => ({ table: colours[store.state.colormap], fittedScale }),
});
const guide = new Guide(element, { step: goToStep });
// What is at a place of one picture, or of one grid of patches, means nothing on another.
const nothingPlaced = { pins: [], patches_off: [] };
/** Nor does a patch that a map is about likeness to. */
function onAnotherGrid() {
  const { target, ...others } = store.state.views[active].parameters, kept = withoutPlaces(target);
  return { ...nothingPlaced, parameters: kept === null ? others : { ...others, target: kept } };
}
// `hovered` is a pane's query; the other pane shows the one that is linked to it.
let active = 0, hovered = null, cell = null, sheet = null, asked = 0, moved = 0, playing = 0, uploaded = 0;
let typed = { text: "", when: 0 }, describing = 0, acted = false, opening = false, switched = "";

// ---- what is drawn ----

const isDouble = () => store.state.layout === "two" || store.state.layout === "difference";
const shownPanes = () => (isDouble() ? panes : panes.slice(0, 1));

function ask() {
  if (!asked) asked = requestAnimationFrame(show);
}

/** The query that a pane shows: what is under the pointer, or what was chosen. */
function queryOfPane(pane) {
  const { chosen } = pane;
  if (!hovered || !pane.hasToken) return chosen;
  const linked = pane.linked(hovered.pane, hovered.query);
  return linked === undefined ? chosen : linked;
}

function show() {
  asked = 0;
  const shown = shownPanes();
  if (!element.isConnected || shown.some((pane) => !pane.painter)) return;
  const maps = shown.map((pane) => {
    const query = queryOfPane(pane);
    pane.rest(hovered ? query : null);
    const values = pane.values(query) ?? (hovered ? pane.values(pane.chosen) : null);
    const said = pane.values(query) ? query : pane.chosen;
    return { pane, query: values ? said : query, values, scaled: pane.scaled(said, values), signed: pane.signed(said) };
  });
  // Two maps of the same quantity side by side have one scale.
  const all = maps.map(({ scaled }) => scaled), isShared = store.state.layout === "two" && all.every(Boolean) && quantityOf(maps[0]) === quantityOf(maps[1]);
  const common = isShared ? fittedScale(all, { signed: maps.some(({ signed }) => signed) }) : null;
  for (const map of maps) {
    map.scale = common ?? (map.scaled && fittedScale([map.scaled], { signed: map.signed }));
    showMap(map);
  }
  if (store.state.layout === "difference") showDifference(...maps);
  const failure = shown.map(({ packs }) => packs.failure).find(Boolean);
  setState(failure ? "failed" : "ready");
  if (moved) measured.hovers.push(performance.now() - moved);
  moved = 0;
  const map = maps.find(({ pane }) => pane.index === active) ?? maps[0];
  controls.showScale(store.state, map.scale);
  showPins(find("pins"), map.pane.hasToken ? map.pane.view.pins : [], (canvas, query) => drawPin(canvas, map.pane, query), unpin);
  const token = tokenOf(map.query, map.pane.facts, map.pane.model) ?? map.pane.facts.start;
  showSheet(map.pane, token);
  showStrip(find("strip"), map.pane, token, colours[store.state.colormap], { ...lookOf(), grid: false }, fittedScale, (layer) => showLayer(layer));
  guide.show(store.state.panel === "guide" ? store.state.guide : null, guideFacts(map));
}

const quantityOf = ({ pane, query }) => pane.about(query).quantity ?? QUANTITIES[pane.view.method] ?? "";

function lookOf() {
  const { opacity, fade, smooth, grid, layout, divider } = store.state;
  return { opacity, fade, smooth, grid, part: layout === "slide" ? divider : undefined };
}

/** The scale of the page, fittedScale to maps. */
function fittedScale(maps, options) {
  return fitScale(store.state.scale, maps, { percentiles: store.state.percentiles, ...options });
}

function showMap({ pane, query, values, scaled, scale }) {
  const table = colours[store.state.colormap], canvas = pane.find("canvas");
  pane.show(query, values, scale, table, lookOf(), pane.marks);
  for (const place of pane.view.patches_off) pane.painter.cross(canvas, place);
  pane.showChips(query, values);
  const under = hovered && !pane.hasToken && hovered.pane === pane && values ? tokenOf(hovered.query, pane.facts, pane.model) : null;
  const value = under === null ? "" : `, ${nameOf(hovered.query)}: ${digits(values[under])}`;
  pane.showLegend(scale, scaled, table, `${quantityOf({ pane, query })}${value}`);
  const about = scale?.caption(scaled, SCALES[scale.name]);
  pane.say(!values && pane.packs.failure ? reason(pane.packs.failure) : [pane.sentence(query, values), about].filter(Boolean).join(" "));
  pane.element.classList.toggle("vx-chosen-pane", isDouble() && pane.index === active);
}

/** The second pane shows what the first map has more (red) and less (blue) than its own. */
function showDifference(first, second) {
  const { pane } = second, { rows, columns, prefix } = first.pane.facts;
  const alike = rows === pane.facts.rows && columns === pane.facts.columns && prefix.join() === pane.facts.prefix.join();
  if (!alike) return pane.say("These two have different tokens: there is no difference patch by patch.");
  if (!first.values || !second.values) return;
  const values = first.values.map((value, token) => value - second.values[token]);
  const patches = values.subarray(prefix.length), scale = fittedScale([patches], { signed: true });
  // Two equal maps have the colour of zero, which is in the middle.
  pane.show(second.query, values, scale, differenceColours, lookOf(), pane.marks);
  pane.showLegend(scale, patches, differenceColours, "map 1 minus map 2");
  if (pane.index === active) controls.showScale(store.state, scale);
  const best = pane.attention.strongest(values.map(Math.abs)), about = scale.caption(patches, SCALES[scale.name]);
  pane.say(patches.some((value) => value !== 0) ? `Map 1 minus map 2. Largest difference: ${nameOf(queryOf(best, pane.facts))} with ${digits(values[best])}.${about && ` ${about}`}` : "Map 1 minus map 2: they are equal.");
}

function drawPin(canvas, pane, query) {
  const values = pane.values(query), scaled = pane.scaled(query, values);
  pane.painter.draw(canvas, values?.subarray(pane.attention.prefix), scaled && fittedScale([scaled], { signed: pane.signed(query) }), colours[store.state.colormap], { ...lookOf(), part: undefined, grid: false });
  if (Array.isArray(query)) pane.painter.mark(canvas, query, "white", 1.5);
}

function showSheet(pane, token) {
  const { facts, attention, view } = pane, [left, top, right, bottom] = facts.box;
  if (sheet?.attention !== attention) sheet = new Sheet(find("sheet"), attention);
  const head = valueOf(view, "head", facts);
  sheet.show({
    token, layer: valueOf(view, "layer", facts), head, shared: store.state.shared_scale, fittedScale, colours: colours[store.state.colormap],
    direction: valueOf(view, "direction", facts) ?? "row", fusion: typeof head === "string" ? head : sheet.wanted?.fusion ?? "mean",
    loaded: [...pane.packs.held.keys()].filter((name) => name.startsWith("layer")).join(), ratio: (bottom - top) / (right - left),
    ink: getComputedStyle(pane.find("status")).color,
  });
  controls.sayOfCell(cell ? sentenceOfCell(attention, cell, token) : "");
}

function sentenceOfCell(attention, { layer, head }, token) {
  const name = typeof head === "number" ? `head ${head}` : `${head} of all heads`;
  const values = attention.map(layer, head, token, "row");
  if (!values) return `Layer ${layer} is being fetched …`;
  const most = Math.log(attention.tokens).toFixed(2), distance = attention.distance(values, token);
  const far = distance === null ? "" : `, mean distance ${distance.toFixed(2)} patches`;
  const spread = head === "max" || head === "min" ? "" : `: entropy ${attention.entropy(values).toFixed(2)} of ${most} nats`;
  return `Layer ${layer}, ${name}${spread}${far}.`;
}

/** What the guide says of the shown map: of one head's row where it can, since there are the scores. */
function guideFacts({ pane, query, values }) {
  const { facts, attention, view } = pane;
  if (!values) return null;
  const best = pane.strongest(query, values), row = view.method === "attention" && valueOf(view, "direction", facts) === "row";
  const sum = values.subarray(attention.prefix).reduce((total, value) => total + value, 0);
  const name = nameOf(query ?? queryOf(tokenOf(query, facts, pane.model) ?? facts.start, facts));
  return { facts, name, best: nameOf(queryOf(best, facts)), weight: share(values[best]), sum: share(sum), score: row && values[best] > 0 ? Math.log(values[best]) : null };
}

/** A step of the guide, with the map that it is about; null closes the guide. */
function goToStep(step) {
  const method = step === null ? null : STEPS[step][3];
  if (method && store.state.views[active].method !== method) chooseMethod(method);
  store.patch(step === null ? { panel: "", guide: 0 } : { panel: "guide", guide: step });
}

/** "empty", "loading", "ready" or "failed", for the style sheet and for tests. */
function setState(name) {
  element.querySelector(".vx").dataset.state = name;
  find("retry").hidden = name !== "failed";
}

// ---- from one state to the next ----

/** After every change of the state: ask for what it needs, and draw what is there. */
function sync() {
  const started = performance.now(), { views, layout } = store.state;
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
  describeSoon();
  ask();
  measured.changes.push(performance.now() - started);
}

function showControls() {
  const { state } = store, view = state.views[active], pane = panes[active];
  source.show(view, pane.key === analysisKey(view) ? pane.facts : null, pane.model);
  panels.show(state, active, pane.facts, pane.model);
  if (pane.facts && pane.key === analysisKey(view)) controls.show(state, active, pane.facts, pane.model, playing !== 0);
}

function wantAnalysis(pane, view) {
  const key = analysisKey(view), other = panes[1 - pane.index];
  pane.element.classList.add("vx-stale");
  if (known.has(key)) return install(pane, view, known.get(key));
  if (other.key === key) return install(pane, view, other.facts);
  if (pane.wanting === key) return;
  pane.wanting = key;
  const sent = copyOf(store.state), { index } = pane;
  const body = { kind: "analyze", state: legal(sent), index, upload: uploads.get(view.picture) ?? null, own: uploads.get(view.model) ?? null };
  runs.want(`analysis ${index}`, key, body).then(
    (reply) => arrived(pane, key, sent, reply),
    (error) => error.replaced ? forget(pane, key) : failed(pane, key, error),
  );
}

/** A state without the page's own names of what the server does not know yet. */
function legal(state) {
  const views = state.views.map((view, index) => ({
    ...view, ...(uploads.has(view.picture) && { picture: SETTINGS.examples[0].id }), ...(uploads.has(view.model) && { model: panes[index].model?.id ?? "" }),
  }));
  return { ...state, views };
}

function forget(pane, key) {
  if (pane.wanting === key) pane.wanting = null;
}

function arrived(pane, key, sent, reply) {
  forget(pane, key);
  Object.assign(models, reply.models);
  const view = store.state.views[pane.index];
  if (!view || analysisKey(view) !== key) return sync();
  const fresh = reply.state.views[pane.index], own = Object.fromEntries(ANALYSED.map((name) => [name, fresh[name]]));
  // Whoever has chosen another map meanwhile keeps it; what is illegal for this analysis is put right by `describe`.
  const next = same(view, sent.views[pane.index]) ? fresh : { ...view, ...own };
  remember(analysisKey(next), reply.facts);
  load(pane, reply.facts, next);
  store.patchView(pane.index, next);
  if (reply.notes?.length) notify(reply.notes.join(" "));
}

/** What cannot be had leaves the view as it was. */
function failed(pane, key, error) {
  forget(pane, key);
  const view = store.state.views[pane.index];
  if (!view || analysisKey(view) !== key) return;
  if (error.expired) return sync();
  if (!pane.facts) return pane.say(reason(error));
  const kept = Object.fromEntries([...ANALYSED, "pins", "patches_off", "heads_off", "parameters", "method"].map((name) => [name, pane.view[name]]));
  notify(`${error.message.replace(/\.$/, "")}. Below is still what was there before.`);
  store.patchView(pane.index, kept);
}

function remember(key, facts) {
  known.delete(key);
  known.set(key, facts);
  while (known.size > MAX_KNOWN) known.delete(known.keys().next().value);
}

function install(pane, view, facts) {
  forget(pane, pane.wanting);
  runs.drop(`analysis ${pane.index}`);
  load(pane, facts, view);
}

function load(pane, facts, view) {
  if (pane.index === active || pane.index === 0) panels.clear();
  switched = "";
  hovered = cell = null;
  setState("loading");
  pane.element.classList.remove("vx-stale");
  pane.load(facts, models[facts.model], view);
}

/** A pane's analysis is not kept any more: it is asked for again. */
function renew(pane) {
  const now = performance.now();
  pane.renewals = (pane.renewals ?? []).filter((when) => now - when < RENEWALS_WITHIN);
  if (pane.renewals.length >= MAX_RENEWALS) return;
  pane.renewals.push(now);
  for (const [key, facts] of known) if (facts.uid === pane.facts?.uid) known.delete(key);
  for (const each of panes) if (each.facts && each.facts.uid === pane.facts?.uid) each.key = "";
  sync();
}

/** A file or the picture of a pane has come, or could not be had. */
function paneChanged(pane, error) {
  if (error?.expired) return renew(pane);
  if (error?.stopped) notify("Stopped. The map before is a choice of another method away.");
  showControls();
  describeSoon();
  ask();
}

function reason(error) {
  if (error.expired) return "The server no longer has this picture's attention, and was asked to compute it again …";
  if (error.stopped) return "Stopped.";
  return `${error.message.replace(/\.$/, "")}.`;
}

async function fetchFile(pane, facts, name) {
  if (!element.isConnected) throw Error("this page is gone");
  const answer = name.startsWith("map ") && !OFFLINE ? await fetchMap(pane, facts, name) : await server.file({ uid: facts.uid, name });
  if (!answer) throw Error("The server does not answer");
  if (answer.content) return Uint8Array.from(atob(answer.content), (letter) => letter.charCodeAt(0)).buffer;
  if (answer.refused) throw Error(answer.refused);
  if (answer.expired) throw Object.assign(Error("expired"), { expired: true });
  const response = await fetch(addressOfFile(answer));
  if (!response.ok) throw Object.assign(Error(`The server answers ${response.status}`), { expired: response.status === 404 });
  return response.arrayBuffer();
}

async function fetchMap(pane, facts, name) {
  const [method, parameters] = JSON.parse(name.slice(4)), body = { uid: facts.uid, method, parameters };
  const answer = await server.map(body);
  return answer?.slow ? runs.want(`map ${pane.index} ${name}`, facts.uid + name, { kind: "map", ...body }) : answer;
}

/** What a pane no longer needs is not computed any more. */
function wanted(pane, names) {
  runs.keep(`map ${pane.index} `, names.map((name) => `map ${pane.index} ${name}`));
}

function retry() {
  setState("loading");
  for (const pane of shownPanes()) {
    pane.renewals = [];
    pane.packs?.retry();
  }
  sync();
}

function showBusy(state) {
  find("busy").hidden = !state;
  if (!state) return;
  const texts = { open: "Opening the link", analysis: "Analysing", switch: "Running the model", rank: "Ranking the heads", compare: "Comparing" };
  find("busy-text").textContent = state.text || METHODS[state.method]?.title || texts[state.slot.split(" ")[0]];
  if (state.done) find("busy-bar").value = state.done / state.total;
  else find("busy-bar").removeAttribute("value");
}

function notify(text) {
  find("notice").hidden = !text;
  find("notice").querySelector("span").textContent = text;
}

// ---- links ----

function describeSoon() {
  clearTimeout(describing);
  if (!OFFLINE) describing = setTimeout(() => described().catch(() => {}), DESCRIBE_AFTER);
}

const isSettled = () => shownPanes().every((pane) => pane.facts && pane.key === analysisKey(store.state.views[pane.index] ?? {}));

/** The link and the lines of Python of what is shown; what cannot be so is put right. */
async function described() {
  if (latest.version === store.version || !isSettled()) return latest;
  const { version } = store, uids = shownPanes().map(({ facts }) => facts.uid);
  const answer = await server.describe({ state: store.state, uids });
  if (version !== store.version || !answer || answer.expired) return latest;
  Object.assign(latest, { link: answer.link, python: answer.python, version });
  showAddress();
  if (answer.notes?.length) notify(answer.notes.join(" "));
  if (!same(answer.state, store.state)) store.replace(answer.state);
  return latest;
}

/** The address of a link; what Gradio and its hosts put there stays. */
function addressOf(link) {
  const others = [...new URLSearchParams(location.search)].filter(([name]) => name.startsWith("__"));
  const words = [new URLSearchParams(others).toString(), link.replace(/^\?/, "")].filter(Boolean).join("&");
  return `${location.pathname}${words ? `?${words}` : ""}`;
}

/** What shows something else can be gone back from, at once: its address follows. */
function showEntry() {
  if (opening || OFFLINE || !element.isConnected) return;
  const { views, layout } = store.state, place = JSON.stringify([layout, ...views.map((view) => [analysisKey(view), view.method])]);
  const before = history.state?.vitviz ? history.state : null, isNew = before !== null && before.place !== place;
  const id = isNew || !before ? crypto.randomUUID() : before.vitviz;
  visited.set(id, store.state);
  if (before?.place !== place) writeHistory(isNew ? "pushState" : "replaceState", { ...history.state, vitviz: id, place });
}

function showAddress() {
  if (!opening && element.isConnected) writeHistory("replaceState", history.state, addressOf(latest.link));
}

function writeHistory(way, entry, address) {
  try {
    history[way](entry, "", address);
  } catch {
    // Some browsers refuse many changes in a short time; the next one follows.
  }
}

/** While a link is opened, the page shows what it does not say. */
function setOpening(isOpening) {
  opening = isOpening;
  element.querySelector(".vx").setAttribute("aria-busy", isOpening);
}

function openLink(link) {
  const before = store.state;
  setOpening(true);
  // Whatever becomes of it, the address then says what is shown.
  const end = () => {
    setOpening(false);
    latest.version = -1;
    sync();
    for (const pane of panes) pane.want();
  };
  runs.want("open", link, { kind: "open", link }).then((reply) => {
    Object.assign(models, reply.models);
    reply.views.forEach((facts, index) => remember(analysisKey(reply.state.views[index]), facts));
    // What the visitor chose meanwhile stays chosen.
    store.replace(withChanges(reply.state, before, store.state));
    end();
    if (reply.notes?.length) notify(reply.notes.join(" "));
    if (reply.state.panel === "compare") compare();
  }, (error) => {
    end();
    if (!error.replaced) notify(`This link cannot be opened: ${error.message}`);
  });
}

const isLink = (text) => [...new URLSearchParams(text.split("#")[0])].some(([name]) => !name.startsWith("__")) || text.includes("#");

addEventListener("popstate", (event) => {
  const state = visited.get(event.state?.vitviz);
  if (!element.isConnected) return;
  if (state) store.replace(state);
  else openLink(location.search + location.hash);
});

// ---- what is chosen ----

function choosePicture(picture) {
  const { target } = store.state.views[active].parameters;
  // A patch of another picture than the one that is looked at stays what it is.
  store.patchView(active, { picture, ...(target?.like ? nothingPlaced : onAnotherGrid()) });
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
  if (file.size > SETTINGS.max_upload_bytes) return notify(`${file.name}: ${megabytes(file.size)}; expected at most ${megabytes(SETTINGS.max_upload_bytes)}`) ?? null;
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
  store.patchView(active, { model, step: null, fit: null, resolution: null, parameters: Object.fromEntries(kept), heads_off: [], ...nothingPlaced });
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

// ---- panels ----

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
  inPanel("compare", JSON.stringify([uid, parameters, target]), { kind: "compare", uid, parameters, target }, async (reply) => {
    const packs = {};
    for (const { method, path } of reply.maps) packs[method] = readPack(await fetchPath(path));
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

// ---- events ----

function hover(pane, token, event) {
  if (!pane.painter) return;
  const query = token === null ? null : queryOf(token, pane.facts);
  if (token === null ? hovered === null : hovered?.pane === pane && same(hovered.query, query)) return;
  hovered = token === null ? null : { pane, query };
  moved = event?.timeStamp ?? 0;
  ask();
}

function move(down, across) {
  const pane = panes[active], { attention, facts } = pane, token = pane.token ?? facts.start;
  const [row, column] = token < attention.prefix ? [-down, -across] : attention.cell(token);
  const inside = (place, count) => Math.min(Math.max(place, 0), count - 1);
  chooseToken(pane, [inside(row + down, facts.rows), inside(column + across, facts.columns)]);
}

/** The next of the prefix tokens whose name begins so. */
function nextPrefix(start) {
  const pane = panes[active], names = pane.facts.prefix.filter((name) => name.startsWith(start));
  const now = names.indexOf(pane.token === null ? "" : pane.facts.prefix[pane.token]);
  if (names.length) chooseToken(pane, names[(now + 1) % names.length]);
}

function digit(pressed) {
  const now = performance.now(), before = now - typed.when < DIGITS_WITHIN ? typed.text : "";
  typed = { text: Number(before + pressed) >= panes[active].facts.heads ? pressed : before + pressed, when: now };
  showHead(Number(typed.text));
}

const pinChosen = () => panes[active].token !== null && pin(panes[active], panes[active].token);
const layerNow = () => valueOf(store.state.views[active], "layer", panes[active].facts) ?? panes[active].facts.layers - 1;
const KEYS = {
  ArrowLeft: () => move(0, -1),
  ArrowRight: () => move(0, 1),
  ArrowUp: () => move(-1, 0),
  ArrowDown: () => move(1, 0),
  Enter: pinChosen,
  " ": pinChosen,
  Escape: () => store.patchView(active, { pins: [] }),
  "[": () => showLayer(layerNow() - 1),
  "]": () => showLayer(layerNow() + 1),
  c: () => nextPrefix("cls"),
  r: () => nextPrefix("register"),
  d: () => nextPrefix("distillation"),
  g: () => setLook("grid", !store.state.grid),
  p: play,
  m: () => showHead("mean"),
};
// A control of its own takes these keys itself.
const OWN_KEYS = "input, select, textarea, button, summary, a, [contenteditable], dialog, .vx-guide";

document.addEventListener("keydown", (event) => {
  const pane = panes[active], isOurs = element.contains(event.target) || event.target === document.body;
  if (!element.isConnected || !isOurs || !pane.painter || event.ctrlKey || event.metaKey || event.altKey) return;
  const name = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  const isLetter = name.length === 1 && name !== " " && !event.target.closest("input:not([type=range], [type=checkbox], [type=radio]), textarea, select, dialog, [contenteditable]");
  if (!isLetter && event.target.closest(OWN_KEYS) && name !== "Escape") return;
  // The page scrolls with the arrows unless the picture has the focus.
  if (name.startsWith("Arrow") && !event.target.closest(".vx-canvas")) return;
  const act = /^\d$/.test(name) ? () => digit(name) : KEYS[name];
  if (!act) return;
  event.preventDefault();
  moved = event.timeStamp;
  act();
});

function cellUnder(event) {
  const edges = find("sheet").getBoundingClientRect();
  return sheet?.wanted ? sheet.cellAt(event.clientX - edges.left, event.clientY - edges.top) : null;
}

find("sheet").onpointermove = (event) => { cell = cellUnder(event); ask(); };
find("sheet").onpointerleave = () => { cell = null; ask(); };
find("sheet").onclick = (event) => {
  const under = cellUnder(event);
  if (!under) return;
  if (!hasParameter(store.state.views[active].method, "layer") || !hasParameter(store.state.views[active].method, "head")) chooseMethod("attention");
  setParameter("head", under.head);
  setParameter("layer", under.layer);
};
find("skip").onclick = () => panes[0].find("canvas").focus();
find("retry").onclick = retry;
find("stop").onclick = () => runs.stop();
find("strip").ontoggle = ask;
find("notice").querySelector("button").onclick = () => notify("");
find("theme").onclick = () => {
  const dark = document.body.classList.toggle("dark");
  document.documentElement.style.colorScheme = dark ? "dark" : "light";
  ask();
};
panes.forEach((pane) => new ResizeObserver(ask).observe(pane.find("canvas")));
watch("value", () => runs.reply(props.value));
element.explorer = {
  panes, store, runs, measured, latest,
  map: (query) => Array.from(panes[0].values(query) ?? []),
  settled: () => !opening && !runs.running && isSettled() && latest.version === store.version,
};
element.querySelector(".vx").classList.toggle("vx-offline", OFFLINE);
for (const facts of props.value?.views ?? []) remember(analysisKey(store.state.views[0]), facts);
if (!OFFLINE && isLink(location.search + location.hash)) openLink(location.search + location.hash);
sync();
