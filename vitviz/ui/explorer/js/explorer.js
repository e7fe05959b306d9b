// What is chosen, what follows from it, and every event. `element`, `props`, `server`, `trigger` and `watch` are Gradio's.

const PLAY_EVERY = 450;
// Digits typed so soon after one another are one number.
const DIGITS_WITHIN = 700;

const find = (name) => element.querySelector(`.vx-${name}`);
const { [DIFFERENCE]: signed, ...colours } = readColours(props.colours);
const look = {
  view: "one", divider: 0.5, colormap: "turbo", opacity: 0.6, smooth: false, grid: true, shared: false, playing: false,
};
const plain = { ...look };
const measured = { hovers: [] };
const controls = new Controls(element, Object.keys(colours), choose);
const hooks = { hover, pick, key, changed };
const panes = [...element.querySelectorAll(".vx-pane")].map((part) => new Pane(part, hooks));
const pins = new Pins(find("pins"), (pin) => { pins.drop(pin); ask(); });
// The address with which the page opened counts until something is chosen: analyses come one after the other.
// `chosen` and `hovered` are a pane's token; the other pane shows the one that is linked to it.
let active = panes[0], chosen = null, hovered = null, cell = null, sheet = null;
let asked = 0, moved = 0, playing = 0, typed = { text: "", when: 0 }, linking = 0, opened = false, acted = false, beside = false;

// ---- what is shown ----

const comparing = () => look.view === "two" || look.view === "difference";
const shownPanes = () => (comparing() ? panes : panes.slice(0, 1));

function ask() {
  if (!asked) asked = requestAnimationFrame(show);
}

function show() {
  asked = 0;
  const shown = shownPanes();
  if (!element.isConnected || !chosen || shown.some((pane) => !pane.painter)) return;
  const { pane: from, token: wanted } = hovered ?? chosen;
  const maps = shown.map((pane) => {
    const token = pane.linked(from, wanted), values = pane.values(token);
    return { pane, token, values, range: values && pane.attention.range(values), marks: pins.marks(pane) };
  });
  // Two maps side by side have one scale.
  const known = maps.flatMap(({ range }) => range ?? []), all = known.length ? [Math.min(...known), Math.max(...known)] : null;
  maps.forEach((map) => showMap(map, look.view === "two" && map.range ? all : map.range));
  if (look.view === "difference") showDifference(...maps);
  const failure = shown.map(({ packs }) => packs.failure).find(Boolean);
  controls.state(failure ? stateOf(failure) : "ready");
  if (moved) measured.hovers.push(performance.now() - moved);
  moved = 0;
  const { pane, token } = maps.find((map) => map.pane === active);
  pins.show(pane, (canvas, pinned) => drawPin(canvas, pane, pinned));
  showSheet(pane, token);
  showStrip(pane, token);
}

function showMap({ pane, token, values, range, marks }, ends) {
  const table = colours[look.colormap], part = look.view === "slide" ? look.divider : undefined;
  pane.show(token, values, ends, table, { ...look, part }, marks);
  pane.showChips(values, token, marks);
  pane.showLegend(ends, table, QUANTITIES[pane.choice.direction] ?? pane.packs.get(pane.choice.direction)?.about.quantity);
  pane.say(!values && pane.packs.failure ? reason(pane.packs.failure) : pane.sentence(token, values));
  pane.element.classList.toggle("vx-chosen-pane", comparing() && pane === active);
}

/** The second pane shows what the first map has more (red) and less (blue) than its own. */
function showDifference(first, second) {
  const { pane } = second, { rows, columns, prefix } = first.pane.facts;
  const alike = rows === pane.facts.rows && columns === pane.facts.columns && prefix.join() === pane.facts.prefix.join();
  if (!alike) return pane.say("These two have different tokens: there is no difference patch by patch.");
  if (!first.values || !second.values) return;
  const values = first.values.map((value, token) => value - second.values[token]);
  const most = Math.max(...pane.attention.range(values).map(Math.abs)), ends = [-most, most];
  // Two equal maps have the colour of zero, which is in the middle.
  pane.show(second.token, values, most ? ends : [-1, 1], signed, look, second.marks);
  pane.showLegend(ends, signed, "map 1 minus map 2");
  pane.say(`Map 1 minus map 2, which is: ${pane.sentence(second.token, second.values)}`);
}

function drawPin(canvas, pane, token) {
  const values = pane.values(token), range = values ? pane.attention.range(values) : [0, 1];
  const small = { ...look, grid: false };
  pane.painter.draw(canvas, values?.subarray(pane.attention.prefix), range, colours[look.colormap], small);
  if (token >= pane.attention.prefix) pane.painter.mark(canvas, pane.attention.cell(token), "white", 1.5);
}

function showSheet(pane, token) {
  const { facts, attention, choice } = pane, [left, top, right, bottom] = facts.box;
  if (sheet?.attention !== attention) sheet = new Sheet(find("sheet"), attention);
  if (token !== null) sheet.show({
    token, layer: choice.layer, head: choice.head, shared: look.shared, colours: colours[look.colormap],
    direction: LIVE.includes(choice.direction) ? choice.direction : "row",
    fusion: typeof choice.head === "number" ? sheet.wanted?.fusion ?? "mean" : choice.head,
    loaded: [...pane.packs.held.keys()].join(), ratio: (bottom - top) / (right - left),
    ink: getComputedStyle(pane.find("status")).color,
  });
  controls.sayOfCell(cell && token !== null ? sentenceOfCell(attention, cell, token) : "");
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

// ---- what is chosen ----

function choose(name, value) {
  acted = true;
  set(name, value);
}

function set(name, value) {
  if (name in active.choice) active.choice[name] = value;
  else look[name] = value;
  if (name === "layer" || name === "direction") active.want();
  if (name === "playing") play();
  if (name === "view") compare();
  refresh();
}

function refresh() {
  if (active.facts) controls.show(active.choice, look, active.facts, panes.indexOf(active));
  linkSoon();
  ask();
}

function chooseLayer(layer) {
  choose("layer", Math.min(Math.max(layer, 0), active.facts.layers - 1));
}

function chooseHead(head) {
  if (head === "mean" || (head >= 0 && head < active.facts.heads)) choose("head", head);
}

function chooseToken(pane, token) {
  acted = true;
  hovered = null;
  chosen = { pane, token };
  refresh();
}

/** Make a pane the one that the controls are about. */
function activate(pane) {
  if (pane === active || !pane.facts) return;
  active = pane;
  controls.fit(pane.facts);
  refresh();
}

/** Show a second pane, or only the first. */
function compare() {
  panes[1].element.hidden = !comparing();
  if (comparing()) {
    if (firstTime(panes[1])) Object.assign(panes[1].choice, panes[0].choice, panes[1].asked);
    if (!panes[1].facts) loadPane(panes[1], props.value?.other ?? props.value);
    activate(panes[1]);
  } else {
    activate(panes[0]);
    if (chosen?.pane === panes[1]) chosen = { pane: panes[0], token: panes[0].linked(panes[1], chosen.token) ?? panes[0].facts.start };
    pins.list = pins.list.filter((pin) => pin.pane === panes[0]);
  }
}

function firstTime(pane) {
  const first = !pane.opened;
  pane.opened = true;
  return first;
}

function play() {
  clearInterval(playing);
  if (look.playing && active.facts) playing = setInterval(() => {
    if (!element.isConnected) choose("playing", false);
    else chooseLayer((active.choice.layer + 1) % active.facts.layers);
  }, PLAY_EVERY);
}

// ---- loading ----

/** Take over another value; the choices stay as far as the new model has them. */
function load() {
  const value = props.value;
  if (!value || !value.uid) return empty();
  if (panes[0].facts?.uid !== value.uid) {
    const before = panes[0].facts, own = ["rows", "columns"].every((side) => before?.[side] === value[side]);
    if (!own || before.prefix.join() !== value.prefix.join()) {
      pins.clear();
      chosen = { pane: panes[0], token: value.start };
    }
    hovered = cell = null;
    controls.state("loading");
    panes[0].say("Loading …");
    if (!acted && isAsked(value)) openLink(value);
    loadPane(panes[0], value);
  }
  const second = value.other ?? value;
  if (panes[1].facts && panes[1].facts.uid !== second.uid) {
    pins.list = pins.list.filter((pin) => pin.pane === panes[0]);
    if (chosen.pane === panes[1]) chosen = { pane: panes[0], token: value.start };
    if (hovered?.pane === panes[1]) hovered = null;
    if (comparing()) loadPane(panes[1], second);
    else panes[1].close();
  }
  controls.fit(active.facts);
  refresh();
  if (value.other && !beside) showBeside(value);
  beside = Boolean(value.other);
}

function loadPane(pane, facts) {
  pane.load(facts, (name) => fetchFile(facts, name));
}

function empty() {
  Object.assign(look, { playing: false, view: "one" });
  play();
  compare();
  panes.forEach((pane) => pane.close());
  pins.clear();
  chosen = hovered = sheet = null;
  controls.state("empty");
  find("pins").replaceChildren();
  panes[0].say("Drop a picture on the left.");
}

/** A file or the picture of a pane has come, or could not be had. */
function changed(pane, error) {
  if (!error) {
    // Before the picture is there, nothing is shown that a link could restore.
    linkSoon();
    return ask();
  }
  controls.state(stateOf(error));
  pane.say(reason(error));
  if (error.expired) trigger("expired", { uid: pane.facts.uid });
}

function stateOf(error) {
  return error.expired ? "expired" : "failed";
}

function reason(error) {
  if (error.expired) return "The server no longer has this picture's attention, and was asked to compute it again …";
  return `The server does not answer (${error.message}).`;
}

async function fetchFile(facts, name) {
  if (!element.isConnected) throw Error("this page is gone");
  const answer = await server.file({ uid: facts.uid, name });
  if (!answer) throw Error("no connection");
  if (answer.content) return Uint8Array.from(atob(answer.content), (letter) => letter.charCodeAt(0)).buffer;
  if (answer.refused) throw Error(answer.refused);
  if (answer.expired) throw Object.assign(Error("expired"), { expired: true });
  // The server's address of any of its files.
  const beside = facts.picture.url, start = beside.indexOf("file=") + 5;
  const response = await fetch(beside.slice(0, start) + answer.path);
  if (!response.ok) throw Object.assign(Error(`HTTP ${response.status}`), { expired: response.status === 404 });
  return response.arrayBuffer();
}

function retry() {
  controls.state("loading");
  for (const pane of shownPanes()) {
    if (pane.painter) pane.packs.fill();
    else if (pane.facts) loadPane(pane, pane.facts);
  }
}

// ---- events ----

function hover(pane, token, event) {
  if (!pane.painter || (token === null ? hovered === null : hovered?.pane === pane && hovered.token === token)) return;
  hovered = token === null ? null : { pane, token };
  moved = event?.timeStamp ?? 0;
  ask();
}

function pick(pane, token) {
  activate(pane);
  if (token === null || !pane.painter) return;
  const pinned = pins.toggle(pane, token);
  acted = true;
  chosen = { pane, token };
  if (pinned) trigger("pinned", { uid: pane.facts.uid, token });
  refresh();
}

function move(down, across) {
  const { attention, facts } = active, token = active.linked(chosen.pane, chosen.token) ?? facts.start;
  const [row, column] = token < attention.prefix ? [-down, -across] : attention.cell(token);
  const inside = (place, count) => Math.min(Math.max(place, 0), count - 1);
  chooseToken(active, attention.token(inside(row + down, facts.rows), inside(column + across, facts.columns)));
}

/** The next of the prefix tokens whose name begins so. */
function nextPrefix(start) {
  const places = active.facts.prefix.flatMap((name, index) => (name.startsWith(start) ? [index] : []));
  const now = places.indexOf(active.linked(chosen.pane, chosen.token));
  if (places.length) chooseToken(active, places[(now + 1) % places.length]);
}

function digit(pressed) {
  const now = performance.now(), before = now - typed.when < DIGITS_WITHIN ? typed.text : "";
  typed = { text: Number(before + pressed) >= active.facts.heads ? pressed : before + pressed, when: now };
  chooseHead(Number(typed.text));
}

const KEYS = {
  ArrowLeft: () => move(0, -1),
  ArrowRight: () => move(0, 1),
  ArrowUp: () => move(-1, 0),
  ArrowDown: () => move(1, 0),
  Enter: () => pick(active, active.linked(chosen.pane, chosen.token)),
  " ": () => pick(active, active.linked(chosen.pane, chosen.token)),
  Escape: () => { pins.clear(); ask(); },
  "[": () => chooseLayer(active.choice.layer - 1),
  "]": () => chooseLayer(active.choice.layer + 1),
  c: () => nextPrefix("cls"),
  r: () => nextPrefix("register"),
  d: () => nextPrefix("distillation"),
  g: () => choose("grid", !look.grid),
  p: () => choose("playing", !look.playing),
  m: () => chooseHead("mean"),
};

function key(event) {
  if (!active.painter || event.ctrlKey || event.metaKey || event.altKey) return;
  const name = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  const act = /^\d$/.test(name) ? () => digit(name) : KEYS[name];
  if (!act) return;
  event.preventDefault();
  moved = event.timeStamp;
  act();
}

function cellUnder(event) {
  const edges = find("sheet").getBoundingClientRect();
  return sheet?.wanted ? sheet.cellAt(event.clientX - edges.left, event.clientY - edges.top) : null;
}

find("sheet").onpointermove = (event) => { cell = cellUnder(event); ask(); };
find("sheet").onpointerleave = () => { cell = null; ask(); };
find("sheet").onclick = (event) => {
  const under = cellUnder(event);
  if (!under) return;
  if (!LIVE.includes(active.choice.direction)) active.choice.direction = "row";
  active.choice.head = under.head;
  chooseLayer(under.layer);
};
find("retry").onclick = retry;
panes.forEach((pane) => new ResizeObserver(ask).observe(pane.find("canvas")));
watch("value", load);
element.explorer = {
  panes, look, measured, pins,
  map: (...question) => Array.from(panes[0].attention.map(...question) ?? []),
};
load();
