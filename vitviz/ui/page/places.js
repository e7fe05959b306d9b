// Where pictures are computed: by the server that runs the page, or on this device by a page of its own; and the way between the two.

import { findAll, setText } from "./dom.js";
import { randomId } from "./numbers.js";
import { panes, store } from "./page.js";
import { backend, METHODS, PROBES, SETTINGS, START } from "./settings.js";
import { analysisKey } from "./store.js";

// What the browser keeps: the place that was chosen, and, on the way from one page to the other, the state, and the pictures in a
// database of their own, whose name has its time.
const CHOICE = "vitviz.place", HANDOVER = "vitviz.handover", PICTURES = "pictures";
// Pictures that no page has taken by then are deleted by the next one, such as those of a tab that was closed.
const KEPT_MS = 300_000;
// A picture that is no part of the state yet.
const GIVEN = "given";
// What only the server has of pictures and models.
const SERVER_INPUT = { step: null, frame: null, white: null, color_profile: null, resolution: null };

/** @typedef {"device" | "server"} Place */
/** @typedef {{ state: State, questions: Record<string, any>[], pictures: Record<string, File>, given?: File, notes: string[] }} Handover */

const isOnDevice = START.device !== undefined;
/** @type {Place} */
const place = isOnDevice ? "device" : "server", other = isOnDevice ? "server" : "device";
/** The address of the page of the other place; empty if there is none. */
export const otherPlace = START.device ? START.device.server : SETTINGS.device_models?.length ? `${backend.base}device/` : "";

/**
 * What the browser's storage gives; null if it may not be used.
 * @template Result
 * @param {() => Result} use
 */
function stored(use) {
  try {
    return use();
  } catch {
    return null;
  }
}

/** Whether the device was chosen, and this is the page of the server. */
export const isDeviceChosen = () => !isOnDevice && otherPlace !== "" && stored(() => localStorage.getItem(CHOICE)) === "device";

/** @param {Place} chosen */
export const rememberPlace = (chosen) => stored(() => localStorage.setItem(CHOICE, chosen));

/** @param {View} view */
const hasOwnPicture = ({ picture }) => !picture.startsWith("example:");

/**
 * An address with the entries of Gradio and its hosts in that of this page.
 * @param {string} path
 * @param {string=} link
 */
export function withHostEntries(path, link = "") {
  const hostEntries = [...new URLSearchParams(location.search)].filter(([name]) => name.startsWith("__"));
  const query = [new URLSearchParams(hostEntries).toString(), link.replace(/^\?/, "")].filter(Boolean).join("&");
  return `${path}${query ? `?${query}` : ""}`;
}

// Whoever presses a button on the device knows whether a picture is sent.
const showsOwnPicture = () => store.state.views.some(hasOwnPicture);

/** @param {File=} given */
const labelOfRemedy = (given) =>
  given ? "Send it to the server" : `Use the server${showsOwnPicture() ? ", and send it this picture" : ""}`;

/**
 * On the device, the button that helps where only the server does: for all that is shown, or a file in its place.
 * @param {File=} given
 */
export const serverRemedies = (given) => (isOnDevice && otherPlace
  ? [{ label: labelOfRemedy(given), act: () => { changePlace(given); } }]
  : []);

/**
 * Offer the other place.
 * @param {View} view
 */
export function showPlace({ model }) {
  const isOffered = SETTINGS.device_models?.includes(model);
  const text = isOnDevice
    ? `${showsOwnPicture() ? "Send this picture to the server" : "Use the server"}, which does more`
    : `Keep pictures on this device${isOffered ? "" : ", with another model"}`;
  const properties = { hidden: !otherPlace, textContent: text, onclick: () => changePlace() };
  for (const button of findAll(".vx-place")) Object.assign(button, properties);
  // The server shows a link, whatever was chosen.
  const goal = isDeviceChosen() ? "It stays on this device." : "It goes to the server that runs this page.";
  for (const hint of findAll(".vx-goal")) setText(hint, goal);
}

export const goToOtherPlace = () => location.replace(withHostEntries(otherPlace));

/**
 * Let the other place compute from now on: what is shown, or a file that the visitor gives the page.
 * @param {File=} given
 */
export async function changePlace(given) {
  const views = store.state.views.map((view, index) => (panes[index].key === analysisKey(view) ? view : panes[index].view ?? view));
  /** @type {Record<string, File>} */
  const pictures = given ? { [GIVEN]: given } : {};
  /** @type {string[]} */
  const notes = [];
  let database = "";
  try {
    for (const [index, view] of views.entries())
      // To the server goes nothing but what the visitor sends.
      if (hasOwnPicture(view) && !(given && isOnDevice))
        pictures[view.picture] = new File([await backend.file(panes[index].facts.uid, "picture")], panes[index].facts.name);
    if (Object.keys(pictures).length) {
      database = `${HANDOVER}.${Date.now()}.${randomId()}`;
      await inDatabase(database, "readwrite", (all) => all.put(pictures, PICTURES));
    }
  } catch {
    notes.push("This browser does not hand the picture on: drop it here again.");
  }
  rememberPlace(other);
  const handover = { place: other, database, state: { ...store.state, views }, questions: store.questions, notes };
  stored(() => sessionStorage.setItem(HANDOVER, JSON.stringify(handover)));
  goToOtherPlace();
}

/** What the other page has handed to this one, which nothing keeps; null if it has nothing. */
export function takeHandover() {
  // A saved page and a notebook, whose storage browsers may refuse.
  if (!otherPlace) return null;
  const handover = JSON.parse(stored(() => sessionStorage.getItem(HANDOVER)) ?? "null");
  stored(() => sessionStorage.removeItem(HANDOVER));
  deleteUntaken(handover?.database);
  return handover?.place === place ? handedOver(handover) : null;
}

/** @param {string=} awaited the database that this page is about to read */
async function deleteUntaken(awaited) {
  try {
    for (const { name = "" } of await indexedDB.databases()) {
      const [made] = name.startsWith(`${HANDOVER}.`) ? name.slice(HANDOVER.length + 1).split(".").map(Number) : [Infinity];
      if (name !== awaited && made < Date.now() - KEPT_MS) indexedDB.deleteDatabase(name);
    }
  } catch {
    // A browser that keeps nothing has nothing to delete.
  }
}

/**
 * @param {{ state: State, questions: Record<string, any>[], database: string, notes: string[] }} handover
 * @returns {Promise<Handover>}
 */
async function handedOver({ state, questions, database, notes }) {
  /** @type {Record<string, File>} */
  const pictures = {};
  try {
    const files = database ? await inDatabase(database, "readonly", (all) => all.get(PICTURES)) ?? {} : {};
    for (const [name, file] of Object.entries(files)) pictures[name] = new File([await file.arrayBuffer()], file.name, { type: file.type });
    if (database) indexedDB.deleteDatabase(database);
  } catch {
    // The other page has said so.
  }
  const { [GIVEN]: given, ...others } = pictures, views = [];
  for (const view of state.views) {
    const known = isOnDevice ? onDevice(view, notes) : view;
    const isThere = !hasOwnPicture(known) || known.picture in others;
    views.push(isThere ? known : { ...known, picture: START.state.views[0].picture, pins: [], patches_off: [] });
  }
  const panel = isOnDevice && state.panel === "compare" ? "" : state.panel;
  // Another model has other layers.
  const alike_layer = views[0].model === state.views[0].model ? state.alike_layer : null;
  return { state: { ...state, views, panel, alike_layer }, questions, pictures: others, given, notes };
}

/**
 * A view of the server's page with what the device has, and sentences about what it lacks.
 * @param {View} view
 * @param {string[]} notes
 * @returns {View}
 */
function onDevice(view, notes) {
  const [first] = START.state.views, known = { ...view, ...SERVER_INPUT };
  if (!START.models[view.model]) {
    notes.push(`On this device, ${START.models[first.model].title} computes.`);
    Object.assign(known, { model: first.model, parameters: {}, pins: [], heads_off: [], patches_off: [] });
  }
  if (!METHODS[view.method]) {
    notes.push("Only the server computes the map that was shown.");
    Object.assign(known, { method: first.method, parameters: first.parameters });
  }
  if (!PROBES[view.probe]) Object.assign(known, { probe: first.probe, probe_parameters: {} });
  if (!SETTINGS.fits.some(({ name }) => name === view.fit)) known.fit = null;
  return known;
}

/**
 * The answer of a database that holds pictures between two pages.
 * @param {string} name
 * @param {IDBTransactionMode} mode
 * @param {(pictures: IDBObjectStore) => IDBRequest<any>} ask
 * @returns {Promise<any>}
 */
async function inDatabase(name, mode, ask) {
  const opening = indexedDB.open(name);
  opening.onupgradeneeded = () => opening.result.createObjectStore(PICTURES);
  await new Promise((done, fail) => Object.assign(opening, { onsuccess: done, onerror: () => fail(opening.error) }));
  const transaction = opening.result.transaction(PICTURES, mode), request = ask(transaction.objectStore(PICTURES));
  await new Promise((done, fail) => Object.assign(transaction, { oncomplete: done, onabort: () => fail(transaction.error) }));
  opening.result.close();
  return request.result;
}
