// What the page says of itself: messages, progress, and its state for the style sheet.

import { createButton, find, findAll, root } from "./dom.js";
import { METHODS } from "./settings.js";

/** @param {any} error */
export function reasonOf(error) {
  if (error.expired) return "The server no longer has this picture's attention, and was asked to compute it again …";
  if (error.stopped) return "Stopped.";
  return error.message.replace(/[^.?]$/, "$&.");
}

/** @type {Record<string, ShownProgress | null>} */
const busy = { weights: null, uploads: null, runs: null, films: null };

/**
 * Show the progress of weights that are loaded, or else that of a picture on its way, of requests, or of a video.
 * @param {any} lane
 * @param {any} its
 */
export function showBusy(lane, its) {
  busy[lane] = its;
  const state = busy.weights ?? busy.uploads ?? busy.runs ?? busy.films;
  // It fades in after a delay, so that short requests show nothing.
  find("busy").hidden = !state;
  if (!state) return;
  /** @type {Record<string, string>} */
  const texts = {
    open: "Opening the link",
    upload: "Uploading",
    analysis: "Analysing",
    picture: "Reading the picture",
    switch: "Running the model",
    rank: "Ranking the heads",
    probe: "Looking into the model",
    compare: "Comparing",
    film: "Rendering the video",
    flip: "Covering squares",
  };
  find("busy-text").textContent = state.text || METHODS[state.method ?? ""]?.title || texts[state.slot.split(" ")[0]];
  // Weights are loaded once for all that is asked; another picture takes the place of one on its way.
  find("stop").hidden = ["weights", "upload"].includes(state.slot);
  if (state.done) find("busy-bar").value = state.done / state.total;
  else find("busy-bar").removeAttribute("value");
}

/** @typedef {{ label: string, act: () => void }} Remedy */
/** @param {() => void} act */
export const retryOf = (act) => ({ label: "Retry", act });

/**
 * Say something in the one place for messages, in place of what stands there, with what helps as buttons.
 * @param {string} text
 * @param {Remedy[]} remedies
 */
export function notify(text, remedies = []) {
  find("notice").firstElementChild.textContent = "";
  for (const button of findAll(".vx-remedy")) button.remove();
  if (text) notifyToo(text, remedies);
}

/**
 * Say something after what stands there: of one picture, there may be several things to say.
 * @param {string} text
 * @param {Remedy[]} remedies
 */
export function notifyToo(text, remedies = []) {
  const notice = find("notice"), message = notice.firstElementChild;
  if (message.textContent.includes(text)) return;
  message.textContent = `${message.textContent} ${text}`.trim();
  notice.lastElementChild.before(...remedies.map(({ label, act }) => createButton({
    className: "vx-remedy",
    textContent: label,
    onclick: () => {
      notify("");
      act();
    },
  })));
}

/**
 * "empty", "loading", "ready" or "failed", for the style sheet and for tests.
 * @param {string} name
 * @param {any=} canRetry
 */
export function setState(name, canRetry = true) {
  root.dataset.state = name;
  find("retry").hidden = name !== "failed" || !canRetry;
}
