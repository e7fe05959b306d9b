// The likeliest classes as bars, each a button that asks why. What hiding changes is marked on them.

import { predictionsNow } from "./answer.js";
import { chooseTarget } from "./choices.js";
import { labelOf } from "./class_names.js";
import { create, createButton, find } from "./dom.js";
import { offeredMethods } from "./map_sources.js";
import { shortPercent } from "./numbers.js";
import { activePane, activeView } from "./page.js";

export function showPredictions() {
  const { facts, model } = activePane(), { target } = activeView().parameters, holder = find("predictions");
  const classes = predictionsNow(facts), names = JSON.stringify(classes.map(({ index }) => [index, labelOf(model, index)]));
  if (holder.dataset.names !== names) {
    holder.dataset.names = names;
    holder.replaceChildren(...classes.map(({ index }) => createButton(
      { title: "See why: a map about this class", onclick: () => chooseTarget(index), dataset: { index } },
      create("i", { textContent: labelOf(model, index) }), create("span"), create("output"),
    )));
  }
  const saysWhy = offeredMethods(facts, model).some(({ about_a_class: isOfClass }) => isOfClass);
  classes.forEach(({ index, probability, before }, place) => {
    const button = holder.children[place], [, bar, output] = button.children;
    bar.style.setProperty("--ghost", before === undefined ? 0 : 1);
    bar.style.setProperty("--was", before ?? 0);
    bar.style.setProperty("--part", probability || 0);
    output.textContent = before === undefined ? shortPercent(probability)
      : `${shortPercent(before).slice(0, -1)} → ${Number.isNaN(probability) ? "…" : shortPercent(probability)}`;
    button.setAttribute("aria-pressed", index === target);
    button.disabled = !saysWhy;
  });
}
