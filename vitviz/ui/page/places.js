// Where pictures are computed: by the server that runs the page, or on this device by a page of its own; and the way between the two.

import { findAll } from "./dom.js";
import { panes, store } from "./page.js";
import { backend, METHODS, PROBES, SETTINGS, START } from "./settings.js";
import { analysisKey } from "./store.js";

// What the browser keeps: the place that was chosen, and, on the way from one page to the other, the state and the pictures.
const CHOICE = "vitviz.place", HANDOVER = "vitviz.handover", DATABASE = "vitviz", PICTURES = "pictures";
// A picture that is no part of the state yet.
const GIVEN = "given";
// What only the server has of pictures and models.
const SERVER_INPUT = { step: null, frame: null, white: null, color_profile: null, resolution: null };

/** @typedef {{ state: State, pictures: Record<string, File>, given?: File, notes: string[] }} Handover */

const isOnDevice = START.device !== undefined;
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

/** @param {"device" | "server"} place */
export const rememberPlace = (place) => stored(() => localStorage.setItem(CHOICE, place));

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

/**
 * On the device, the button that helps where only the server does: for all that is shown, or a file in its place.
 * @param {File=} given
 */
export const serverRemedies = (given) => (isOnDevice && otherPlace
  ? [{ label: given ? "Send it to the server" : "Use the server", act: () => { changePlace(given); } }]
  : []);

/**
 * Offer the other place.
 * @param {View} view
 */
export function showPlace({ picture, model }) {
  const isOwn = !picture.startsWith("example:"), isOffered = SETTINGS.device_models?.includes(model);
  const text = isOnDevice
    ? isOwn ? "Send this picture to the server, which does more" : "Use the server, which does more"
    : `Keep pictures on this device${isOffered ? "" : ", with another model"}`;
  const properties = { hidden: !otherPlace, textContent: text, onclick: () => changePlace() };
  for (const button of findAll(".vx-place")) Object.assign(button, properties);
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
  try {
    for (const [index, { picture }] of views.entries())
      if (!picture.startsWith("example:"))
        pictures[picture] = new File([await backend.file(panes[index].facts.uid, "picture")], panes[index].facts.name);
    if (Object.keys(pictures).length) await inDatabase("readwrite", (all) => all.put(pictures, PICTURES));
  } catch {
    notes.push("This browser does not hand the picture on: drop it here again.");
  }
  rememberPlace(isOnDevice ? "server" : "device");
  stored(() => sessionStorage.setItem(HANDOVER, JSON.stringify({ state: { ...store.state, views }, notes })));
  goToOtherPlace();
}

/** What the other page has handed to this one, which nothing keeps; null if it has nothing. */
export function takeHandover() {
  const text = stored(() => sessionStorage.getItem(HANDOVER));
  stored(() => sessionStorage.removeItem(HANDOVER));
  return text ? handedOver(JSON.parse(text)) : null;
}

/**
 * @param {{ state: State, notes: string[] }} handover
 * @returns {Promise<Handover>}
 */
async function handedOver({ state, notes }) {
  /** @type {Record<string, File>} */
  const pictures = {};
  try {
    const kept = await inDatabase("readonly", (all) => all.get(PICTURES)) ?? {};
    for (const [name, file] of Object.entries(kept)) pictures[name] = new File([await file.arrayBuffer()], file.name, { type: file.type });
    indexedDB.deleteDatabase(DATABASE);
  } catch {
    // The other page has said so.
  }
  const { [GIVEN]: given, ...others } = pictures, views = [];
  for (const view of state.views) {
    const known = isOnDevice ? onDevice(view, notes) : view;
    const isThere = known.picture.startsWith("example:") || known.picture in others;
    views.push(isThere ? known : { ...known, picture: START.state.views[0].picture, pins: [], patches_off: [] });
  }
  return { state: { ...state, views, panel: isOnDevice && state.panel === "compare" ? "" : state.panel }, pictures: others, given, notes };
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
 * The answer of the database that holds pictures between two pages.
 * @param {IDBTransactionMode} mode
 * @param {(pictures: IDBObjectStore) => IDBRequest<any>} ask
 * @returns {Promise<any>}
 */
function inDatabase(mode, ask) {
  return new Promise((resolve, reject) => {
    const opening = indexedDB.open(DATABASE);
    opening.onupgradeneeded = () => opening.result.createObjectStore(PICTURES);
    opening.onerror = () => reject(opening.error);
    opening.onsuccess = () => {
      const { result: database } = opening, transaction = database.transaction(PICTURES, mode);
      const request = ask(transaction.objectStore(PICTURES));
      transaction.oncomplete = () => {
        database.close();
        resolve(request.result);
      };
      transaction.onabort = () => reject(transaction.error);
    };
  });
}
