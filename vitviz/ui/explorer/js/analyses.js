// Analyses and their files, asked of the server as the state needs them. A part of explorer.js, whose names it uses.

// An analysis that leaves the server so often in so many milliseconds is not asked for once more.
const MAX_RENEWALS = 3, RENEWALS_WITHIN = 30000;

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
  store.patchView(pane.index, kept);
  notify(`${error.message.replace(/\.$/, "")}. Below is still what was there before.`);
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
  if (pane.index === active || pane.index === 0) {
    panels.clear();
    probes.clear();
  }
  switched = probed = "";
  hovered = cell = null;
  setState("loading");
  pane.element.classList.remove("vx-stale");
  pane.load(facts, models[facts.model], view);
}

/** A pane's analysis is not kept any more: it is asked for again. */
function renew(pane) {
  const now = performance.now();
  pane.renewals = (pane.renewals ?? []).filter((when) => now - when < RENEWALS_WITHIN);
  if (pane.renewals.length >= MAX_RENEWALS || OFFLINE) {
    // Nothing can be drawn, so that nothing else says it.
    if (!pane.painter) {
      pane.say("The picture cannot be fetched.");
      setState("failed");
    }
    return;
  }
  pane.renewals.push(now);
  unlearn(pane);
  sync();
}

/** What the server said of a pane's analysis is no longer so. */
function unlearn(pane) {
  for (const [key, facts] of known) if (facts.uid === pane.facts?.uid) known.delete(key);
  for (const each of panes) if (each.facts && each.facts.uid === pane.facts?.uid) each.key = "";
}

/** A file or the picture of a pane has come, or could not be had. */
function paneChanged(pane, error) {
  if (error?.expired) return renew(pane);
  if (error?.stopped) notify("Stopped. The map before is a choice of another method away.");
  showControls();
  wantSwitched();
  wantProbe();
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
  if (answer.content) return fromBase64(answer.content).buffer;
  if (answer.refused) throw Object.assign(Error(answer.refused), { final: answer.final });
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
    if (!pane.painter) unlearn(pane);
    pane.packs?.retry();
  }
  sync();
}

const busy = { runs: null, films: null };

/** Of what a visitor waits for; of a video where there is nothing else. */
function showBusy(lane, its) {
  busy[lane] = its;
  const state = busy.runs ?? busy.films;
  find("busy").hidden = !state;
  // It appears by a transition, which begins once it is there: what is soon over shows nothing.
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
