// The state as the address of the page, and back. A part of explorer.js, whose names it uses.

// The address follows when nothing has changed for so long; browsers refuse more than a few changes a second.
const DESCRIBE_AFTER = 300;

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
  if (answer.refused) return answer.final ? leaveIllegal(answer.refused) : latest;
  Object.assign(latest, { link: answer.link, python: answer.python, version, state: answer.state });
  showAddress();
  if (!same(answer.state, store.state)) store.replace(answer.state);
  if (answer.notes?.length) notify(answer.notes.join(" "));
  return latest;
}

/** A state that the server refuses must not last: the last legal one takes its place. */
function leaveIllegal(refused) {
  if (!latest.state || same(latest.state, store.state)) return latest;
  store.replace(latest.state);
  notify(refused);
  return latest;
}

/** A view without settings that its method or probe does not have, such as those of one that was chosen before. */
function withOwnSettings(view) {
  const kept = (given, records) => Object.fromEntries(Object.entries(given).filter(([name]) => records.some((each) => each.name === name)));
  return { ...view, parameters: kept(view.parameters, METHODS[view.method].parameters), probe_parameters: kept(view.probe_parameters, PROBES[view.probe].parameters) };
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
    const merged = withChanges(reply.state, before, store.state);
    store.replace({ ...merged, views: merged.views.map(withOwnSettings) });
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
