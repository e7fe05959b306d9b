// What the parts of the page share: its state, its analyses, and its panes.

import { showBusy } from "./messages.js";
import { RequestQueue } from "./request_queue.js";
import { backend, METHODS, START } from "./settings.js";
import { isPaired, Store } from "./store.js";

// `changes` is what the model says without what is hidden from it. `hovered` is a pane and its query under the pointer; the
// other pane shows its counterpart. `chosenPicture` is one that was chosen and is not analysed yet, `openedPicture` one that
// the visitor has not touched since it opened, and `ownMethod` the method of the page's own choice. `coverTime` is when covers
// began to wipe in, `isCovered` whether the page itself put them there. `heldQuantity` is that of the maps whose scale is held.
// `isTouched` is whether the visitor has pointed or typed.
/**
 * @type {{ active: number, hovered: { pane: Pane, query: Query } | null, hoveredCell: { layer: number, head: Head } | null,
 *   sheet: Sheet | null, difference: Pane | null, isOpening: boolean, isTouched: boolean, moveTime: number, changes: any,
 *   chosenPicture: string, ownMethod: string, openedPicture: string, coverTime: number, isCovered: boolean, heldQuantity: string,
 *   draw: () => void }}
 */
export const page = {
  active: 0, hovered: null, hoveredCell: null, sheet: null, difference: null, isOpening: false, isTouched: false, moveTime: 0,
  changes: null, chosenPicture: "", ownMethod: START.state.views[0].method,
  openedPicture: "", coverTime: 0, isCovered: false, heldQuantity: "", draw: () => {},
};
/** @type {{ hovers: number[], changes: number[] }} */
export const timings = { hovers: [], changes: [] };
export const models = { ...START.models };
// Analyses by their keys; checkpoints by the names that the state has for them until the server names them.
export const analyses = new Map(), uploads = new Map();
/** @type {Map<string, string>} Why models of links are not there, by their names in the state. */
export const missing = new Map();
/** @type {Map<string, File>} Pictures that were uploaded and are not analysed yet, by id. */
export const newPictures = new Map();
// Ids of pictures that the server shows whole, since the crop would hide most of them; this fit is not meant for others.
export const widenedPictures = new Set();
// Name and url of pictures that were uploaded for likeness, by id.
export const likedPictures = new Map();
export const latest = { link: "", python: "", version: -1, state: START.state };
/** @type {Pane[]} */
export const panes = [];
export const store = new Store(START.state, METHODS, START.questions);
// A video may take minutes; the rest of the page does not wait for it.
export const [requests, films] = ["runs", "films"].map((lane) => new RequestQueue(backend, (state) => showBusy(lane, state)));

export const activePane = () => panes[page.active], activeView = () => store.state.views[page.active];

/** What the map of a target is about, or would be: a class by its number, another target, or nothing for the first guess. */
export const activeTarget = (index = page.active) =>
  store.state.views[index].parameters.target ?? store.questions[index].target ?? null;

// What is alike in one picture alone, in a saved page, has one view.
export const isDouble = () => isPaired(store.state.layout) && store.state.views.length > 1;

/** Whether two pictures are in the colours of what is alike. */
export const isAlike = () => store.state.layout === "alike";

/** Whether the picture is painted on, to hide squares. */
export const isHiding = () => store.state.panel === "switches" && !isAlike();

export const shownPanes = () => (isDouble() ? panes : panes.slice(0, 1));

/** The panes with a picture: of two maps, also that of their difference. */
export const drawnPanes = () => [...shownPanes(), ...(store.state.layout === "difference" && page.difference ? [page.difference] : [])];

let frameRequest = 0;

/** Draw the state with the next frame of the screen. */
export function requestDraw() {
  frameRequest ||= requestAnimationFrame(() => {
    frameRequest = 0;
    page.draw();
  });
}
