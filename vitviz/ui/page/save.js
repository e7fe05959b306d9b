// Saving and sharing.

import { addressOf, describe } from "./address.js";
import { fetchFile, legalState, renewAnalysis } from "./analyses.js";
import { captionOf } from "./captions.js";
import { hasClasses } from "./class_names.js";
import { find, findAll } from "./dom.js";
import { offerFigure, openFigure } from "./figure.js";
import { metadataOf, numbersOf, saveFile, stemOf } from "./files.js";
import { computedBy, mapFile } from "./map_sources.js";
import { asBase64, mapName } from "./packs.js";
import { activePane, films, isAlike, latest, page, panes, shownPanes, store } from "./page.js";
import { nameOfFeatures } from "./pane.js";
import { backend, METHODS } from "./settings.js";
import { isEqual } from "./store.js";
import { nameOf, queryOf } from "./token_names.js";
import { hasParameter, tokenOf } from "./tokens.js";

const OPEN_TO_ALL = " Whoever has this link sees your picture, as long as the server keeps it.";
const OWN_MODEL = " Your own checkpoint is not part of it: whoever opens it is told to open the same one.";
const LOOPBACK = /^(localhost|127\..*|\[::1\])$/;
const NEEDS_SERVER = "What is shown here needs the server: the file opens with what it can compute by itself.";

const ACTIONS = {
  link: async () => {
    const { link } = await describe(), { views } = store.state;
    const notes = [
      views.some(({ picture }) => picture.startsWith("picture:")) ? OPEN_TO_ALL : "",
      views.some(({ model }) => model.startsWith("own:")) ? OWN_MODEL : "",
    ];
    const address = new URL(addressOf(link), location.href).href;
    const isHere = LOOPBACK.test(location.hostname);
    if (isHere) notes.push(" Only this machine can open it: the app’s option --host lets others in.");
    await copyText(address, notes.join(""));
  },
  python: async () => copyText((await describe()).python),
  figure: () => openFigure(fileName("").slice(0, -1)),
  numbers: async () => saveFile(await numbersOf(activePane(), chosenQuery(), metadata()), fileName("npz")),
  video: async () => {
    const { facts, view } = activePane(), say = (/** @type {string} */ text) => { find("said").textContent = text; };
    const state = legalState(store.state), key = JSON.stringify([facts.uid, state]);
    say("The server renders the video; its progress and a button to stop it are below.");
    try {
      const reply = await films.request("film", key, { kind: "film", state, index: page.active, uid: facts.uid });
      saveFile(await backend.made(reply.address), `${pictureName()}-${view.method}.mp4`, "video/mp4");
      say(`${reply.caption} ${reply.sound ? `Sound: ${reply.sound}.` : "The clip has no sound."}`);
    } catch (/** @type {any} */ error) {
      if (error.replaced) return say("");
      throw error;
    }
  },
  page: async () => {
    const beside = isAlike() ? await savedBeside() : null;
    const { uid } = activePane().facts, { before, start, after } = JSON.parse(new TextDecoder().decode(await backend.file(uid, "page")));
    const { views, questions, maps, isLess } = await savedViews(), { panel, guide, ...look } = store.state;
    const state = {
      ...start.state,
      ...look,
      views: views.map((view) => ({ ...start.state.views[0], ...view })),
      layout: views.length < look.views.length ? "one" : look.layout,
      ...(beside && { layout: "alike", alike_layer: null }),
    };
    if (beside) state.views[1] = { ...state.views[0], ...beside.view };
    // A JSON block ends at the first closing tag.
    const named = new Map([...start.maps, ...maps].map((map) => [mapName(map.method, map.parameters), map]));
    const facts = { ...start.views[0], flip: activePane().facts.flip }, files = { ...start.files, ...beside?.files };
    const contents = { maps: [...named.values()], views: [facts, ...(beside ? [beside.facts] : [])], files };
    const block = JSON.stringify({ ...start, ...contents, state, questions, changes: page.changes }).replaceAll("<", "\\u003c");
    saveFile(`${before}${block}${after}`, `${pictureName()}.html`, "text/html");
    if (isLess && !beside) find("said").append(` ${NEEDS_SERVER}`);
  },
};

// The analysis of the second picture in a saved page, and the name of that picture.
const BESIDE = "beside";

/** What a saved page has of what is alike: both pictures, and their features of the layer that is shown. */
async function savedBeside() {
  const [first, { facts, view }] = panes, name = nameOfFeatures();
  // The page is that of the first picture.
  page.active = 0;
  const [features, others, picture] = await Promise.all([
    [first.facts.uid, name], [facts.uid, name], [facts.uid, "seen.webp"],
  ].map(async ([uid, file]) => asBase64(await backend.file(uid, file))));
  return {
    view: { picture: BESIDE, alike: view.alike, heads_off: view.heads_off, patches_off: view.patches_off },
    facts: { ...facts, uid: BESIDE, model: "", step: null, picture: `data:image/webp;base64,${picture}` },
    files: { features, [`${BESIDE} features`]: others },
  };
}

/** The views of a saved page, their maps that need a model, and whether they are less than the page shows. */
async function savedViews() {
  const { facts, key } = activePane(), maps = new Map();
  const panesOfAnalysis = shownPanes().filter((pane) => pane.key === key);
  const views = await Promise.all(panesOfAnalysis.map(async (pane) => {
    const { view: { method, parameters, pins, heads_off, patches_off, alike } } = pane, target = parameters.target ?? null;
    // A file can have no maps for a text or another picture.
    if (target !== null && !hasClasses(target)) return { ...savedView(pane, facts), heads_off, patches_off, alike };
    const sources = [pane.query, ...(pane.hasToken ? pins : [])].map((query) => pane.sourceOf(query));
    const files = sources.flatMap((source) => (source.kind === "map" ? [source.file] : []));
    // Also the map without parameters, for a method that is chosen in the menu.
    if (files.length) files.push(mapFile(method, {}));
    for (const file of files) maps.set(file.name, { ...file.map, content: asBase64(await fetchFile(pane, facts, file)) });
    return { method, parameters, pins, heads_off, patches_off, alike };
  }));
  const isChanged = (/** @type {any} */ { view }, /** @type {number} */ index) =>
    ["method", "parameters"].some((name) => !isEqual(view[name], /** @type {any} */ (views[index])[name]));
  const isLess = views.length < store.state.views.length || panesOfAnalysis.some(isChanged);
  return { views, questions: panesOfAnalysis.map(({ previous, index }) => previous.questions[index]), maps: [...maps.values()], isLess };
}

/**
 * A pane's view as far as it works without a server.
 * @param {any} options
 * @param {Facts} facts
 */
function savedView({ view: { method, parameters, pins } }, facts) {
  const savedMethod = computedBy(method, [], facts) === "page" ? method : facts.rolls ? "rollout" : "attention",
    hasToken = (/** @type {Query} */ query) => tokenOf(query, facts, null) !== null;
  const isAvailable = (/** @type {any} */ [name, value]) =>
    METHODS[savedMethod].page_parameters.includes(name) && (name !== "query" || hasToken(value));
  return {
    method: savedMethod,
    parameters: Object.fromEntries(Object.entries(parameters).filter(isAvailable)),
    pins: pins.filter(hasToken),
  };
}

const chosenQuery = () => activePane().query;

/** The shown map and its analysis, as JSON in a saved file. */
function metadata() {
  const pane = activePane(), { method, parameters } = pane.view, query = chosenQuery();
  return { ...metadataOf(pane), method, parameters, caption: captionOf(pane, query, pane.values(query)), link: latest.link };
}

const pictureName = () => stemOf(activePane().facts);

/** @param {any} suffix */
function fileName(suffix) {
  const { facts, view } = activePane(), name = pictureName();
  const token = hasParameter(view.method, "query")
    ? `-${nameOf(chosenQuery() ?? queryOf(activePane().token ?? 0, facts))
        .replace(/\W+/g, "-")
        .replace(/-$/, "")}`
    : "";
  return `${name}-${view.method}${token}.${suffix}`;
}

/**
 * @param {string} text
 * @param {any=} note
 */
async function copyText(text, note = "") {
  Object.assign(find("code"), { textContent: text, hidden: false });
  try {
    await navigator.clipboard.writeText(text);
    find("said").textContent = `Copied.${note}`;
  } catch {
    find("said").textContent = `This browser does not allow copying; copy the text below.${note}`;
  }
}

/** @param {string} name */
async function runAction(name) {
  if (!activePane().painter || !(isAlike() || activePane().values(chosenQuery()))) return;
  find("said").textContent = "";
  try {
    await /** @type {any} */ (ACTIONS)[name]();
  } catch (/** @type {any} */ error) {
    if (error.expired) renewAnalysis(activePane());
    find("said").textContent =
      `That did not work: ${error.expired ? "the server had to compute this picture again; try once more" : error.message}.`;
  }
}

/** Let the buttons of the panel act. */
export function offerActions() {
  offerFigure();
  // What was copied is of what was shown then.
  find("said").closest("details").ontoggle = () => {
    find("said").textContent = "";
    find("code").hidden = true;
  };
  for (const button of findAll("[data-act]")) button.onclick = () => runAction(button.dataset.act);
}
