// Requests for analyses and their files, as the state needs them. A part of explorer.js, whose names it uses.

// An analysis that expires this often in this many milliseconds is not requested again.
const MAX_RENEWALS = 3, RENEWAL_MS = 30000;

function requestAnalysis(pane, view) {
  const key = analysisKey(view), otherPane = panes[1 - pane.index];
  pane.element.classList.add("vx-stale");
  if (analyses.has(key)) return install(pane, view, analyses.get(key));
  if (otherPane.key === key) return install(pane, view, otherPane.facts);
  if (pane.pendingKey === key) return;
  pane.pendingKey = key;
  const sentState = copyOf(store.state), { index } = pane;
  const body = { kind: "analyze", state: legalState(sentState), index, upload: uploads.get(view.picture) ?? null, own: uploads.get(view.model) ?? null };
  runs.request(`analysis ${index}`, key, body).then(
    (reply) => applyReply(pane, key, sentState, reply),
    (error) => error.replaced ? clearPending(pane, key) : restoreView(pane, key, error),
  );
}

/** A state without names of uploads that the server does not know yet. */
function legalState(state) {
  const views = state.views.map((view, index) => ({
    ...view, ...(uploads.has(view.picture) && { picture: SETTINGS.examples[0].id }), ...(uploads.has(view.model) && { model: panes[index].model?.id ?? "" }),
  }));
  return { ...state, views };
}

function clearPending(pane, key) {
  if (pane.pendingKey === key) pane.pendingKey = null;
}

function applyReply(pane, key, sentState, reply) {
  clearPending(pane, key);
  Object.assign(models, reply.models);
  const view = store.state.views[pane.index];
  if (!view || analysisKey(view) !== key) return sync();
  const fresh = reply.state.views[pane.index], input = Object.fromEntries(INPUT_FIELDS.map((name) => [name, fresh[name]]));
  // A newer choice of the map wins; `describe` corrects what is illegal for this analysis.
  const next = isEqual(view, sentState.views[pane.index]) ? fresh : { ...view, ...input };
  remember(analysisKey(next), reply.facts);
  load(pane, reply.facts, next);
  store.patchView(pane.index, next);
  if (reply.notes?.length) notify(reply.notes.join(" "));
}

/** Restore the view of a failed request. */
function restoreView(pane, key, error) {
  clearPending(pane, key);
  const view = store.state.views[pane.index];
  if (!view || analysisKey(view) !== key) return;
  if (error.expired) return sync();
  if (!pane.facts) return pane.setStatus(reason(error));
  const previous = Object.fromEntries([...INPUT_FIELDS, "pins", "patches_off", "heads_off", "parameters", "method"].map((name) => [name, pane.view[name]]));
  store.patchView(pane.index, previous);
  notify(`${error.message.replace(/\.$/, "")}. The previous view is still shown.`);
}

function remember(key, facts) {
  analyses.delete(key);
  analyses.set(key, facts);
  while (analyses.size > MAX_ANALYSES) analyses.delete(analyses.keys().next().value);
}

function install(pane, view, facts) {
  clearPending(pane, pane.pendingKey);
  runs.drop(`analysis ${pane.index}`);
  load(pane, facts, view);
}

function load(pane, facts, view) {
  if (pane.index === active || pane.index === 0) {
    panels.clear();
    probes.clear();
  }
  switchKey = probeKey = "";
  hovered = hoveredCell = null;
  setState("loading");
  pane.element.classList.remove("vx-stale");
  pane.load(facts, models[facts.model], view);
}

/** Request a pane's expired analysis again. */
function renew(pane) {
  const now = performance.now();
  pane.renewals = (pane.renewals ?? []).filter((when) => now - when < RENEWAL_MS);
  if (pane.renewals.length >= MAX_RENEWALS || OFFLINE) {
    // Without a painter, nothing else shows the error.
    if (!pane.painter) {
      pane.setStatus("The picture cannot be fetched.");
      setState("failed");
    }
    return;
  }
  pane.renewals.push(now);
  forgetAnalysis(pane);
  sync();
}

/** Forget an analysis that the server no longer has. */
function forgetAnalysis(pane) {
  for (const [key, facts] of analyses) if (facts.uid === pane.facts?.uid) analyses.delete(key);
  for (const shownPane of panes) if (shownPane.facts && shownPane.facts.uid === pane.facts?.uid) shownPane.key = "";
}

/** A file or the picture of a pane is loaded, or has failed with an error. */
function paneChanged(pane, error) {
  if (error?.expired) return renew(pane);
  if (error?.stopped) notify("Stopped. To see a map, choose another method or other parameters.");
  showControls();
  requestSwitched();
  requestProbe();
  describeSoon();
  requestDraw();
}

function reason(error) {
  if (error.expired) return "The server no longer has this picture's attention, and was asked to compute it again …";
  if (error.stopped) return "Stopped.";
  return `${error.message.replace(/\.$/, "")}.`;
}

async function fetchFile(pane, facts, name) {
  return name.startsWith("map ") && !OFFLINE ? fetchMap(pane, facts, name) : backend.file(facts.uid, name);
}

async function fetchMap(pane, facts, name) {
  const [method, parameters] = JSON.parse(name.slice(4)), body = { uid: facts.uid, method, parameters };
  if (computedBy(method, Object.keys(parameters), facts) !== "run") return backend.map(body);
  const { content } = await runs.request(`map ${pane.index} ${name}`, facts.uid + name, { kind: "map", ...body });
  return fromBase64(content).buffer;
}

/** Drop the requests for maps that a pane no longer needs. */
function dropMaps(pane, names) {
  runs.keepOnly(`map ${pane.index} `, names.map((name) => `map ${pane.index} ${name}`));
}

function retry() {
  setState("loading");
  for (const pane of shownPanes()) {
    pane.renewals = [];
    if (!pane.painter) forgetAnalysis(pane);
    pane.packs?.retry();
  }
  sync();
}

const busy = { runs: null, films: null };

/** Show the progress of requests, or else that of a video. */
function showBusy(lane, its) {
  busy[lane] = its;
  const state = busy.runs ?? busy.films;
  find("busy").hidden = !state;
  // It fades in after a delay, so that short requests show nothing; a transition begins only once it is displayed.
  requestAnimationFrame(() => find("busy").classList.toggle("vx-shown", !find("busy").hidden));
  if (!state) return;
  const texts = { open: "Opening the link", analysis: "Analysing", switch: "Running the model", rank: "Ranking the heads", probe: "Looking into the model", compare: "Comparing", film: "Rendering the video" };
  find("busy-text").textContent = state.text || METHODS[state.method]?.title || texts[state.slot.split(" ")[0]];
  if (state.done) find("busy-bar").value = state.done / state.total;
  else find("busy-bar").removeAttribute("value");
}

function notify(text) {
  find("notice").hidden = !text;
  find("notice").querySelector("span").textContent = text;
}
