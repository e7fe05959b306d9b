// The address of the page and what is shown: each follows the other. A part of explorer.js, whose names it uses.

// The address bar follows when nothing has changed for so long; browsers refuse more than a few changes a second.
const LINK_AFTER = 400;
// What a link says of the analysis, by links.py.
const ANALYSIS = ["model", "step", "example", "picture", "fit", "resolution"];
const COMPARED = ["second.model", "second.example", "second.picture"];

const followed = { words: new URLSearchParams(location.search), rest: location.hash.slice(1) };

/** Another picture or model is there to be seen. */
function showBeside(value) {
  // What the address says of it has a meaning only now.
  if (opened && !acted) Object.assign(panes[1].choice, readLink(followed.rest, value, value.other, look, colours).choices[1]);
  set("view", comparing() ? look.view : "two");
}

/** Whether an analysis is the one that the address of the page asks for, as far as it says. */
function isAsked(facts) {
  const said = new URLSearchParams(facts.query);
  return ANALYSIS.every((name) => !followed.words.has(name)) ||
    ANALYSIS.every((name) => followed.words.get(name) === said.get(name));
}

/** What the address of the page says is chosen when it opens. */
function openLink(facts) {
  opened = true;
  const said = readLink(followed.rest, facts, facts.other ?? facts, look, colours);
  Object.assign(panes[0].choice, said.choices[0]);
  panes[1].asked = said.choices[1];
  Object.assign(look, said.look);
  if (said.token !== null) chosen = { pane: panes[0], token: said.token };
  if (look.view !== "one") setTimeout(() => set("view", look.view), 0);
}

/** The address that restores what is shown: behind ? what the server needs to know, behind # the rest. */
function link() {
  const words = new URLSearchParams(props.value.query);
  // Other parts of the page have words there too.
  for (const [name, word] of new URLSearchParams(location.search)) if (![...ANALYSIS, ...COMPARED].includes(name)) words.append(name, word);
  const query = words.toString(), token = panes[0].linked(chosen.pane, chosen.token) ?? panes[0].facts.start;
  return `${location.pathname}${query ? `?${query}` : ""}#${writeLink(shownPanes(), token, look, plain)}`;
}

function linkSoon() {
  clearTimeout(linking);
  linking = setTimeout(showLink, LINK_AFTER);
}

function showLink() {
  if (!(opened || acted) || !panes[0].painter || !element.isConnected) return;
  try {
    history.replaceState(history.state, "", link());
  } catch {
    // A page from disk may not change its address in every browser; its link can still be copied.
  }
}
