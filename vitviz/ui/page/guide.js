// The tour: six steps on the visitor's own picture, each beside the control that it explains.

import { goToStep } from "./choices.js";
import { element, find, findAll } from "./dom.js";
import { STEPS } from "./guide_steps.js";

// The gap between card and highlighted part in pixels, and the time for which the page may still grow after a step.
const GUIDE_GAP = 14, GUIDE_GROWTH_MS = 2000;

export class Guide {
  constructor() {
    /** @type {number | null} */
    this.step = null;
    this.since = 0;
    /** @type {any} */
    this.lit = null;
    /** @type {number | null} */
    this.placedStep = null;
    /** @type {any} */
    this.opener = null;
    this.card = find("guide");
    find("guide-open").onclick = (/** @type {any} */ event) => {
      this.opener = event.currentTarget;
      goToStep(0);
    };
    find("guide-back").onclick = () => goToStep(Math.max(0, (this.step ?? 0) - 1));
    find("guide-next").onclick = () => goToStep((this.step ?? 0) + 1 < STEPS.length ? (this.step ?? 0) + 1 : null);
    find("guide-close").onclick = () => goToStep(null);
    this.card.onkeydown = (/** @type {any} */ event) => {
      if (event.key === "Escape") goToStep(null);
      event.stopPropagation();
    };
    new ResizeObserver(() => this.grown()).observe(element);
  }

  /** Follow the highlighted part while the page above it is still being drawn. */
  grown() {
    if (this.placedStep !== null && performance.now() - this.since < GUIDE_GROWTH_MS) this.place();
  }

  /**
   * @param {number | null} step its number, or null; `shown` the facts for the texts, or null until they are there
   * @param {any} shown
   */
  show(step, shown) {
    if (this.step !== null && step === null) this.opener?.focus();
    this.step = step;
    this.card.hidden = step === null || !shown;
    for (const lit of findAll(".vx-lit")) lit.classList.remove("vx-lit");
    const isNew = !this.card.hidden && step !== this.placedStep;
    this.placedStep = this.card.hidden ? null : step;
    if (this.card.hidden) return;
    if (step === null || !shown) return;
    const { title, text, part } = STEPS[step];
    this.card.querySelector(".vx-guide-place").textContent = `${step + 1} of ${STEPS.length}`;
    this.card.querySelector("h2").textContent = title;
    this.card.querySelector(".vx-guide-text").textContent = text(shown);
    find("guide-back").disabled = step === 0;
    find("guide-next").textContent = step + 1 < STEPS.length ? "Next" : "Done";
    const lit = find(part);
    lit.classList.add("vx-lit");
    if (!isNew) return;
    Object.assign(this, { lit, since: performance.now() });
    this.card.querySelector("h2").focus({ preventScroll: true });
    this.place();
  }

  /** Scroll the highlighted part to where the card does not cover it: beside the card, or above it. */
  place() {
    const { lit, card: { classList } } = this, { left, right } = lit.getBoundingClientRect();
    classList.toggle("vx-left", left + right > innerWidth);
    const card = this.card.getBoundingClientRect(), isBeside = right < card.left || left > card.right;
    lit.style.scrollMargin = `${GUIDE_GAP}px 0 ${isBeside ? GUIDE_GAP : innerHeight - card.top + GUIDE_GAP}px`;
    lit.scrollIntoView({ block: "nearest" });
  }
}
