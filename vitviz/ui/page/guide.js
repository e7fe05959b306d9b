// The tour: three steps on the visitor's own picture, in which things move by themselves. Its words stand above the picture.

import { chooseMethod, methodOf, showLayer } from "./choices.js";
import { find, listenTo, setText } from "./dom.js";
import { hoverToken } from "./events.js";
import { canHide } from "./hiding.js";
import { labelOf } from "./class_names.js";
import { closeMenus } from "./menus.js";
import { range } from "./numbers.js";
import { activePane, activeView, page, store } from "./page.js";
import { METHODS } from "./settings.js";
import { analysisKey } from "./store.js";
import { onTouch, wordsOfFinger } from "./touches.js";

const BEAT_MS = 1000;
const MOST_COVERED = 12;

/**
 * What a step says, and what it shows at each beat; without motion, it shows the beat `still`.
 * @typedef {{ title: string, text: (facts: Facts, model: Model) => string, still: number, show: (beat: number) => void }} Step
 */

/** @type {Set<number>} Tokens that the tour has let ask. */
const askedByTour = new Set();

/** The patches of the shown map, strongest first; none until it is there. */
function strongest() {
  const pane = activePane(), values = pane.values(page.hovered?.query ?? pane.query), { prefix } = pane.attention;
  return values ? range(values.length - prefix).map((patch) => patch + prefix).sort((a, b) => values[b] - values[a]) : [];
}

/** @type {Step[]} */
const STEPS = [
  {
    title: "Every square asks",
    text: ({ rows, columns, layers, heads }) =>
      `The model sees ${rows * columns} squares. In each of ${layers * heads} heads, every square asks all others, and the glow `
      + "is where its attention goes. Here, the square that got most asks next. Point anywhere, and that square asks.",
    still: 0,
    show(beat) {
      if (beat === 0) askedByTour.clear();
      if (activeView().method !== "attention") chooseMethod("attention");
      if (beat === 0) return;
      const next = strongest().find((token) => !askedByTour.has(token));
      if (next === undefined) return;
      askedByTour.add(next);
      hoverToken(activePane(), next, null);
    },
  },
  {
    title: "Layer by layer",
    text: ({ layers }) =>
      `The same square asks in all ${layers} layers, one after another: each layer mixes what the one below has mixed. The film below `
      + "the picture has every layer, and the sheet every head.",
    still: 0,
    show(beat) {
      showLayer(beat % activePane().facts.layers);
    },
  },
  {
    title: "Why, and unless",
    text: ({ predictions }, model) => (predictions.length && model.why_no_hiding
      ? `Under “Why”, bright squares speak for “${labelOf(model, predictions[0].index).split(",")[0]}”. Squares cannot be covered `
        + `here (${model.why_no_hiding}).`
      : canHide(model) && predictions.length
      ? `Now the squares that count most for “${labelOf(model, predictions[0].index).split(",")[0]}” are covered, strongest first, `
        + "and the answer follows. Under “Unless” you cover what you like."
      : "This model names no classes. Under “Why”, choose a picture to compare with: the map shows what makes the two alike."),
    still: MOST_COVERED / 2,
    show(beat) {
      const { facts, model } = activePane(), method = methodOf("target");
      if (!canHide(model) || !facts.predictions.length) return;
      if (METHODS[activeView().method].group !== "target") chooseMethod(method);
      if (!model.why_no_hiding) store.patchView(page.active, {
        patches_off: strongest().slice(0, beat % (MOST_COVERED + 1)).map((token) => activePane().attention.cell(token)),
      });
    },
  },
];

export class Guide {
  constructor() {
    /** @type {number | null} */
    this.step = null;
    /** @type {ReturnType<typeof setInterval> | undefined} */
    this.timer = undefined;
    /** @type {{ key: string, views: View[], questions: Record<string, any>[] } | null} */
    this.before = null;
    this.card = find("guide");
    listenTo("click", {
      "guide-open": () => this.go(0),
      "guide-back": () => this.go(Number(this.step) - 1),
      "guide-next": () => this.go(Number(this.step) + 1),
      "guide-close": () => this.go(STEPS.length),
    });
    this.card.onkeydown = (/** @type {KeyboardEvent} */ event) => {
      if (event.key === "Escape") this.go(STEPS.length);
      event.stopPropagation();
    };
    // The pointer owns the picture.
    onTouch(find("panes"), () => clearInterval(this.timer));
  }

  /**
   * Go to a step; beyond the last one, the page is as it was before the tour, unless another picture or model was chosen.
   * @param {number} step
   */
  go(step) {
    closeMenus();
    const isOver = step >= STEPS.length, { key, views, questions } = this.before ?? {};
    const isSame = views && key === analysisKey(activeView());
    store.patch({ panel: isOver ? "" : "guide", guide: isOver ? 0 : step, ...(isSame && { views }) }, isSame ? questions : undefined);
    if (isOver) find("more").querySelector("summary").focus();
  }

  /**
   * @param {State} state
   * @param {Facts} facts
   * @param {Model} model
   */
  show({ panel, guide }, facts, model) {
    const step = panel === "guide" && facts ? Math.min(guide, STEPS.length - 1) : null;
    this.card.hidden = step === null;
    if (step !== null) setText(find("guide-text"), wordsOfFinger(STEPS[step].text(facts, model)));
    if (step === this.step) return;
    if (this.step === null) this.before = { key: analysisKey(activeView()), views: store.state.views, questions: store.questions };
    this.step = step;
    clearInterval(this.timer);
    page.hovered = null;
    if (step === null) return;
    setText(find("guide-place"), `${step + 1} of ${STEPS.length}`);
    setText(this.card.querySelector("h2"), STEPS[step].title);
    find("guide-back").disabled = step === 0;
    setText(find("guide-next"), step + 1 < STEPS.length ? "Next" : "Done");
    this.card.querySelector("h2").focus({ preventScroll: true });
    this.begin(STEPS[step]);
  }

  /** @param {Step} step */
  begin(step) {
    const isStill = matchMedia("(prefers-reduced-motion: reduce)").matches;
    let beat = isStill ? step.still : 0;
    const show = () => {
      // It waits for what it has asked for.
      const { painter, key } = activePane();
      if (!painter || key !== analysisKey(activeView())) return;
      step.show(beat);
      beat += Number(!isStill);
    };
    this.timer = setInterval(show, BEAT_MS);
    setTimeout(show);
  }
}
