// What pointer and keys do. A part of explorer.js, whose names it uses.

// Digits typed so soon after one another are one number.
const DIGITS_WITHIN = 700;

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
  if (under) showHeadOfLayer(under.layer, under.head);
};
find("skip").onclick = () => panes[0].find("canvas").focus();
find("retry").onclick = retry;
find("stop").onclick = () => (runs.running ? runs : films).stop();
find("strip").ontoggle = ask;
find("notice").querySelector("button").onclick = () => notify("");
find("theme").onclick = () => {
  const dark = document.body.classList.toggle("dark");
  document.documentElement.style.colorScheme = dark ? "dark" : "light";
  ask();
};
panes.forEach((pane) => new ResizeObserver(ask).observe(pane.find("canvas")));
