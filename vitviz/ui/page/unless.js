// The squares without which the answer is another one: searched for meanwhile, and shown by one click.

import { labelOf } from "./class_names.js";
import { find, setText } from "./dom.js";
import { notifyToo, reasonOf } from "./messages.js";
import { wholePercent } from "./numbers.js";
import { activePane, activeView, isHiding, page, requestDraw, requests, store } from "./page.js";
import { COVER_MS } from "./pane.js";
import { backend, SETTINGS } from "./settings.js";
import { analysisKey, isEqual } from "./store.js";
import { isFarLook } from "./tokens.js";
import { onTouch } from "./touches.js";

// The search waits until nothing has changed for so long, in milliseconds.
const SEARCH_REST_MS = 1000;

export class Unless {
  constructor() {
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.timer = undefined;
    // What the visitor has touched is theirs; to move elsewhere touches nothing.
    onTouch(window, ({ type, target }) => {
      if (type !== "pointermove" || find("panes").contains(target)) page.openedPicture = "";
    });
    find("unless").onclick = () => this.cover(activePane().facts.flip);
    // Who points at the line sees on the picture which squares it means.
    for (const event of ["pointerenter", "pointerleave", "focus", "blur"]) find("unless").addEventListener(event, requestDraw);
  }

  /** @param {Flip | null | undefined} flip what was found; without it, it is searched for */
  cover(flip) {
    if (!flip) return this.search(true);
    page.coverTime = matchMedia("(prefers-reduced-motion: reduce)").matches ? -COVER_MS : performance.now();
    store.patchView(page.active, { patches_off: flip.patches, heads_off: [] }, { panel: backend.computes ? "switches" : "" });
  }

  /** Search where it is quick, and say what is known. */
  request() {
    const { facts, model, key } = activePane(), view = activeView();
    clearTimeout(this.timer);
    if (!facts || key !== analysisKey(view) || !(facts.flip || (facts.flips && backend.computes))) return setText(find("unless"), "");
    const { flip } = facts, isCovered = flip && isEqual(view.patches_off, flip.patches), count = flip?.patches.length;
    const squares = count === 1 ? "this square" : `these ${count} squares`;
    const name = flip && labelOf(model, flip.after.index).split(",")[0], isNone = count === 0;
    setText(find("unless"), !flip ? (facts.flips === "on request" ? "Find squares without which it says something else" : "")
      : isNone ? "Covering half of the squares, those that matter most, does not change what it says."
        : `${isCovered ? `Without ${squares},` : `Cover ${squares} and`} it says ${name}, ${wholePercent(flip.after.probability)}.`);
    find("unless").disabled = Boolean(isNone || isCovered);
    const isExample = SETTINGS.examples.some(({ id, is_covered: opensCovered }) => opensCovered && id === page.openedPicture);
    const isUntouched = isFarLook(view, facts) && !Object.keys(store.questions[page.active]).length && !view.patches_off.length;
    if (flip && count && isExample && isUntouched && !isHiding()) {
      page.openedPicture = "";
      page.isCovered = true;
      this.cover(flip);
    } else if (!flip && facts.flips === "meanwhile") this.timer = setTimeout(() => this.search(), isExample ? 0 : SEARCH_REST_MS);
  }

  /** @param {boolean=} isAsked whether the visitor waits for it, and sees how far it is and why it fails */
  search(isAsked) {
    const { facts } = activePane();
    if (!facts) return;
    requests.request("flip", facts.uid, { kind: "flip", uid: facts.uid, is_asked: isAsked }).then((/** @type {Flip} */ reply) => {
      facts.flip = reply;
      store.refresh();
    }, (/** @type {any} */ error) => isAsked && !error.replaced && !error.stopped && notifyToo(reasonOf(error)));
  }
}
