// "How to read this": six steps on the visitor's own picture, each beside the control that it explains.

/** Each step: title, text (from the facts of `guideFacts`), the highlighted part of the page, its method, and whether it needs a single head. */
const STEPS = [
  ["The picture becomes patches", ({ facts }) => `The model does not see pixels but ${facts.rows * facts.columns} patches, ${facts.rows} rows of ${facts.columns}. ` +
    `${facts.fit === "crop" ? "The dimmed edges are cut off." : "The whole picture is resized to its input."} “Seen as” chooses fit and resolution.`, "seen"],
  ["Patches become tokens", ({ facts }) => `Every patch becomes a token: a list of numbers that the layers change step by step.` +
    `${facts.prefix.length ? ` ${facts.prefix.length} more ${facts.prefix.length > 1 ? "tokens belong" : "token belongs"} to no patch: ${facts.prefix.map(nameOf).join(", ")}. Models of this kind read the class from CLS.` : ""}`, "chips"],
  ["One token asks, the others answer", ({ head, name, scores: [low, high], best }) => `In each head a token has a query, and every token a key. Their product is a score, shown here minus its mean over all keys. ` +
    `In ${head}, ${name} asks: the patches' scores go from ${low} to ${high}, and ${best} answers most strongly. Move over the picture, and another patch asks.`, "canvas", "attention", true],
  ["Softmax makes weights: the map", ({ head, scores: [, high], best, weight, sum }) => `Softmax takes e to the power of every score, and divides by the sum: the weights of all tokens sum to 1. ` +
    `In ${head}, with the score ${high}, ${best} gets ${weight}; all patches together get ${sum}. The map shows these weights in colours, and the legend which colour stands for which.`, "legend", "attention", true],
  ["Heads and layers differ", ({ facts }) => `This model has ${facts.layers} layers of ${facts.heads} heads. The sheet has the same token in all of them: ` +
    `one head may follow edges, another look at its neighbours. Click a cell to see it large.`, "sheet-part", "attention"],
  ["Through all layers, and what it does not say", () => `Each layer mixes what the layers below have mixed. Attention rollout multiplies their attention: it shows where information may have come from. ` +
    `It does not say how the information is used. For that, choose a map for a class, and check it under “Compare all methods” and “Switch parts off”.`, "method", "rollout"],
];
// The gap between card and highlighted part in pixels, and the time for which the page may still grow after a step.
const GUIDE_GAP = 14, GUIDE_GROWTH_MS = 2000;

class Guide {
  constructor() {
    Object.assign(this, { step: null, placedStep: null, opener: null });
    this.card = find("guide");
    find("guide-open").onclick = (event) => {
      this.opener = event.currentTarget;
      goToStep(0);
    };
    find("guide-back").onclick = () => goToStep(Math.max(0, this.step - 1));
    find("guide-next").onclick = () => goToStep(this.step + 1 < STEPS.length ? this.step + 1 : null);
    find("guide-close").onclick = () => goToStep(null);
    this.card.onkeydown = (event) => {
      if (event.key === "Escape") goToStep(null);
      event.stopPropagation();
    };
    new ResizeObserver(() => this.grown()).observe(element);
  }

  /** Follow the highlighted part while the page above it is still being drawn. */
  grown() {
    if (this.placedStep !== null && performance.now() - this.since < GUIDE_GROWTH_MS) this.place();
  }

  /** @param step its number, or null; `shown` the facts for the texts, or null until they are there */
  show(step, shown) {
    if (this.step !== null && step === null) this.opener?.focus();
    this.step = step;
    this.card.hidden = step === null || !shown;
    for (const lit of element.querySelectorAll(".vx-lit")) lit.classList.remove("vx-lit");
    const isNew = !this.card.hidden && step !== this.placedStep;
    this.placedStep = this.card.hidden ? null : step;
    if (this.card.hidden) return;
    const [title, text, target] = STEPS[step];
    this.card.querySelector(".vx-guide-place").textContent = `${step + 1} of ${STEPS.length}`;
    this.card.querySelector("h2").textContent = title;
    this.card.querySelector(".vx-guide-text").textContent = text(shown);
    find("guide-back").disabled = step === 0;
    find("guide-next").textContent = step + 1 < STEPS.length ? "Next" : "Done";
    const lit = find(target);
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
