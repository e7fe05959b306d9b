// Pointer and keys.

import { retryFailed } from "./analyses.js";
import {
  chooseSquare, chooseToken, layerShown, pinToken, play, setLook, showHead, showHeadOfLayer, showLayer,
} from "./choices.js";
import { element, find, listenTo, root } from "./dom.js";
import { hidePatch, isHidden, switchHead } from "./hiding.js";
import { showLens } from "./lens.js";
import { closeMenus, listenToMenus } from "./menus.js";
import { notify } from "./messages.js";
import { clamped } from "./numbers.js";
import { activePane, activeView, films, isAlike, isHiding, page, panes, requestDraw, requests, store } from "./page.js";
import { isEqual } from "./store.js";
import { listenToStrip } from "./strip.js";
import { queryOf } from "./token_names.js";
import { valueOf } from "./tokens.js";

// Digits typed within this time are one number.
const DIGITS_MS = 700;
let typedDigits = { text: "", when: 0 };

/**
 * @param {Pane} pane
 * @param {number} token
 * @param {any} event
 */
export function hoverToken(pane, token, event) {
  if (!pane.painter) return;
  const query = token === null ? null : queryOf(token, pane.facts);
  if (token === null ? page.hovered === null : page.hovered?.pane === pane && isEqual(page.hovered.query, query)) return;
  page.hovered = token === null ? null : { pane, query };
  page.moveTime = event?.timeStamp ?? 0;
  requestDraw();
}

/**
 * @param {number} down
 * @param {number} across
 */
function moveToken(down, across) {
  // The square that is kept goes on, in whichever picture it is.
  const pane = panes.find(({ index }) => isAlike() && store.state.views[index]?.alike) ?? activePane(),
    { attention, facts } = pane, token = pane.token ?? facts.start;
  const chosen = isAlike() ? store.state.views[pane.index].alike : token < attention.prefix ? null : attention.cell(token);
  const [row, column] = chosen ?? [-down, -across];
  chooseToken(pane, [clamped(row + down, 0, facts.rows - 1), clamped(column + across, 0, facts.columns - 1)]);
}

/**
 * Choose the next prefix token whose name begins so.
 * @param {string} start
 */
function nextPrefix(start) {
  const pane = activePane(), names = pane.facts.prefix.filter((name) => name.startsWith(start));
  const time = names.indexOf(pane.token === null ? "" : pane.facts.prefix[pane.token]);
  if (names.length) chooseToken(pane, names[(time + 1) % names.length]);
}

/** @param {any} pressed */
function typeDigit(pressed) {
  const time = performance.now(), digits = time - typedDigits.when < DIGITS_MS ? typedDigits.text : "";
  typedDigits = { text: Number(digits + pressed) >= activePane().facts.heads ? pressed : digits + pressed, when: time };
  showHead(Number(typedDigits.text));
}

const pinChosen = () => {
  const pane = activePane(), { token, attention } = pane;
  if (token === null) return;
  if (!isHiding()) pinToken(pane, token);
  else if (token >= attention.prefix) hidePatch(pane, attention.cell(token), !isHidden(attention.cell(token)));
};
const isProjected = () => root.classList.contains("vx-projected");

/**
 * Show the picture alone in large text, for a projector, or everything again.
 * @param {boolean} isOn
 */
function project(isOn) {
  root.classList.toggle("vx-projected", isOn);
  requestDraw();
}

const layerNow = () => layerShown() ?? activePane().facts.layers - 1;
/** @type {Record<string, () => any>} */
const KEYS = {
  ArrowLeft: () => moveToken(0, -1),
  ArrowRight: () => moveToken(0, 1),
  ArrowUp: () => moveToken(-1, 0),
  ArrowDown: () => moveToken(1, 0),
  Enter: pinChosen,
  " ": pinChosen,
  Escape: () => (isProjected() ? project(false)
    : isAlike() ? chooseSquare(activePane(), null) : store.patchView(page.active, { pins: [] })),
  "[": () => showLayer(layerNow() - 1),
  "]": () => showLayer(layerNow() + 1),
  c: () => nextPrefix("cls"),
  r: () => nextPrefix("register"),
  d: () => nextPrefix("distillation"),
  g: () => setLook("grid", !store.state.grid),
  s: () => setLook("smooth", !store.state.smooth),
  p: play,
  f: () => project(!isProjected()),
  "?": () => { find("more").open = true; },
  m: () => showHead("mean"),
};
// A field handles every key itself, and the other controls all but letters, digits and Escape.
const FIELDS = "input:not([type=range], [type=checkbox], [type=radio]), textarea, select, [contenteditable]";
const CONTROLS = "input, button, summary, a, .vx-guide";

/** @param {any} event */
function cellUnder(event) {
  const edges = find("sheet").getBoundingClientRect();
  return page.sheet?.request ? page.sheet.cellAt(event.clientX - edges.left, event.clientY - edges.top) : null;
}

/** @type {Record<string, [number, number]>} */
const CELL_STEPS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

/**
 * Choose the next cell of the sheet, or switch its head off or on; the first column fuses all heads.
 * @param {KeyboardEvent} event
 */
function moveCell(event) {
  const [down, across] = CELL_STEPS[event.key] ?? [], isEnter = event.key === "Enter";
  if (down === undefined && !isEnter) return;
  const { facts } = activePane(), head = valueOf(activeView(), "head", facts), column = typeof head === "number" ? head + 1 : 0;
  const layer = layerNow() + (down ?? 0), next = column + (across ?? 0);
  if (isEnter) switchHead({ layer, head: head ?? "mean" });
  else if (layer >= 0 && layer < facts.layers && next >= 0 && next <= facts.heads)
    showHeadOfLayer({ layer, head: next === 0 ? page.sheet?.request.fusion ?? "mean" : next - 1 });
  event.preventDefault();
  event.stopPropagation();
}

/** @param {any} isDark */
export function setTheme(isDark) {
  document.body.classList.toggle("dark", isDark);
  document.documentElement.style.colorScheme = isDark ? "dark" : "light";
}

/** Listen to the visitor. */
export function listen() {
  document.addEventListener("keydown", (/** @type {any} */ event) => {
    // The dialog itself closes by this key.
    if (event.key === "Escape" && (element.querySelector("dialog[open]") || closeMenus())) return;
    const pane = activePane(), isOurs = element.contains(event.target) || event.target === document.body;
    const isCovered = element.querySelector("dialog[open], .vx-menu-of[open]");
    if (!isOurs || !pane.painter || isCovered || event.ctrlKey || event.metaKey || event.altKey) return;
    const name = event.key.length === 1 ? event.key.toLowerCase() : event.key;
    const isForControls = name === " " || (name.length > 1 && name !== "Escape");
    if (event.target.closest(FIELDS) || (isForControls && event.target.closest(CONTROLS))) return;
    // Without focus on the picture, the arrows scroll the page.
    if (name.startsWith("Arrow") && !event.target.closest(".vx-canvas")) return;
    const action = /^\d$/.test(name) ? () => typeDigit(name) : KEYS[name];
    if (!action) return;
    event.preventDefault();
    page.moveTime = event.timeStamp;
    action();
  });

  // What is hidden by its own press gives the focus to the picture.
  document.addEventListener("focusout", ({ target, relatedTarget }) => {
    if (!relatedTarget && !/** @type {Element} */ (target).checkVisibility()) activePane().find("canvas").focus({ preventScroll: true });
  });

  const hoverCell = (/** @type {any} */ event) => {
    page.hoveredCell = event.type === "pointerleave" ? null : cellUnder(event);
    requestDraw();
    showLens(page.sheet?.lensOf(page.hoveredCell) ?? null, event);
  };
  Object.assign(find("sheet"), { onpointermove: hoverCell, onpointerleave: hoverCell, onkeydown: moveCell });
  listenTo("click", {
    sheet: (event) => {
      const under = cellUnder(event);
      if (under) (event.altKey || isHiding() ? switchHead : showHeadOfLayer)(under);
    },
    skip: () => panes[0].find("canvas").focus(),
    retry: retryFailed,
    stop: () => (requests.running ? requests : films).stop(),
    play,
    project: () => {
      closeMenus();
      project(true);
    },
    "project-end": () => project(false),
    "notice-close": () => notify(""),
    theme: () => {
      setTheme(getComputedStyle(document.body).backgroundColor !== "rgb(15, 17, 22)");
      requestDraw();
    },
  });
  listenToStrip(showLayer, layerNow);
  listenToMenus();
  // The canvas has a width of its own, which follows those of its pane and of the window's height.
  panes.forEach((pane) => new ResizeObserver(requestDraw).observe(pane.element));
  addEventListener("resize", requestDraw);
}
