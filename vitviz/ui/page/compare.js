// The mode in which two maps stand side by side, A and B, and beside them their difference.

import { FUSIONS } from "./attention.js";
import { chooseLayout, chooseMethod, chooseOther, chooseModel, choosePicture, chooseTarget, showHead, showLayer } from "./choices.js";
import { labelOf } from "./class_names.js";
import { find, listenTo, setText } from "./dom.js";
import { offeredMethods } from "./map_sources.js";
import { range } from "./numbers.js";
import { isAlike, isDouble, isHiding, page, panes, store } from "./page.js";
import { answeredBy } from "./question_rule.js";
import { backend, METHODS, SETTINGS } from "./settings.js";
import { isEqual, isPaired } from "./store.js";
import { classOf, valueOf } from "./tokens.js";
import { wordsOfFinger } from "./touches.js";

/** @typedef {{ title: string, value: any }} Offer */
/**
 * What B may have other than A: what is offered, the value of a view, and the name of one that is not offered. Of a list of names,
 * A's own is not offered. A menu has more.
 * @type {Record<string, { offers: (facts: Facts) => Offer[], of: (view: View, facts: Facts) => any, nameOf: (pane: Pane) => string,
 *   choose: (value: any) => void, areNames?: boolean, menu?: string }>}
 */
const KINDS = {
  head: {
    offers: ({ heads }) => [...Object.keys(FUSIONS), ...range(heads)].map((value) => ({ title: String(value), value })),
    of: (view, facts) => valueOf(view, "head", facts),
    nameOf: () => "all heads",
    choose: showHead,
  },
  layer: {
    offers: ({ layers }) => range(layers).map((value) => ({ title: String(value), value })),
    of: (view, facts) => valueOf(view, "layer", facts),
    nameOf: () => "all layers",
    choose: showLayer,
  },
  picture: {
    offers: () => SETTINGS.examples.map(({ id, name, caption }) => ({ title: caption ?? name, value: id })),
    of: ({ picture }) => picture,
    nameOf: ({ facts }) => facts.name,
    choose: choosePicture,
    areNames: true,
    menu: "pictures",
  },
  model: {
    // Several families have networks of one title.
    offers: () => SETTINGS.models.map(({ id, title, family, megabytes }) => ({
      title: `${title} · ${family}${megabytes ? ` · ${Math.ceil(megabytes)} MB` : ""}`, value: id,
    })),
    of: ({ model }) => model,
    nameOf: ({ model }) => model.title,
    choose: chooseModel,
    areNames: true,
    menu: "models",
  },
  method: {
    offers: (facts) => offeredMethods(facts, panes[1].model).map(({ name, title }) => ({ title, value: name })),
    of: ({ method }) => method,
    nameOf: ({ view }) => METHODS[view.method].title,
    // Both answer one question.
    choose(method) {
      chooseMethod(method);
      store.patchView(1, { parameters: answeredBy(store.state.views[0].parameters, method, METHODS) });
    },
    areNames: true,
  },
  class: {
    offers: ({ predictions }) => predictions.map(({ index }) => ({ title: labelOf(panes[1].model, index), value: index })),
    of: classOf,
    nameOf: ({ view, facts, model }) => {
      const about = classOf(view, facts);
      return about === undefined ? "no single class" : labelOf(model, about);
    },
    choose: chooseTarget,
    areNames: true,
  },
};
/**
 * Each of two maps has its own scale where the visitor wants it so or, unless they want one for both, where the maps are about two
 * classes: those of an unlikely one are far lower.
 */
export function hasOwnScales() {
  const [first, second] = panes.map(({ view, facts, model }) => {
    const about = classOf(view, facts);
    return about !== undefined ? labelOf(model, about) : METHODS[view.method].about_a_class ? view.parameters.target : null;
  });
  return store.state.own_scales ?? !isEqual(first, second);
}

const OWN = { title: "your own …", value: "own file" };

export class Comparison {
  constructor() {
    // The kind that the visitor chose; without one, it is that in which the two differ.
    this.kind = "";
    /** @type {Offer[]} */
    this.offers = [];
    const toggle = () => {
      this.kind = "";
      const isOn = isDouble() && !isAlike();
      page.active = isOn ? 0 : 1;
      // A click on a map chooses it there, and hides nothing.
      if (isHiding() && !isDouble()) store.patch({ panel: "" });
      chooseLayout(isOn ? "one" : "two");
      // A map of no single head has none beside it: the same of another picture shows more than itself.
      if (isDouble()) this.kind = "head";
      if (isDouble() && isEqual(store.state.views[0], store.state.views[1])) this.start(backend.computes ? "picture" : "head");
    };
    listenTo("click", { "compare-open": toggle, "compare-end": toggle });
    listenTo("change", {
      "other-kind": ({ target }) => this.start(target.value),
      other: ({ target }) => this.choose(this.offers[target.selectedIndex]),
      own_scales: ({ target }) => store.patch({ own_scales: target.checked }),
      difference: ({ target }) => chooseLayout(target.checked ? "difference" : "two"),
    });
  }

  /**
   * Let B have another one of a kind. Another picture or class is at hand; another model may have to be downloaded, which the visitor
   * chooses.
   * @param {string} kind
   */
  start(kind) {
    this.kind = kind;
    chooseOther(kind);
    const { parameters: { target } } = store.state.views[1], { predictions } = panes[0].facts;
    if (kind === "class") chooseTarget(predictions.find(({ index }) => index !== (target ?? predictions[0].index))?.index ?? 0);
    const others = KINDS.method.offers(panes[0].facts).filter(({ value }) => value !== store.state.views[0].method);
    if (kind === "method") KINDS.method.choose(others[0].value);
    if (kind === "picture") choosePicture(SETTINGS.examples.find(({ id }) => id !== store.state.views[0].picture)?.id ?? "");
  }

  /** @param {Offer} offer */
  choose(offer) {
    const { choose, menu } = KINDS[find("other-kind").value];
    page.active = 1;
    if (offer !== OWN) return choose(offer.value);
    store.refresh();
    find(menu ?? "").querySelector("summary").click();
  }

  /** @param {State} state */
  show({ layout, views: [first, second] }) {
    const isOn = isPaired(layout) && !isAlike(), pane = panes[1], { facts } = pane;
    find("compare-open").setAttribute("aria-pressed", isOn);
    find("comparing").hidden = !isOn;
    if (!isOn || !facts || !panes[0].facts) return;
    for (const option of find("other-kind").options) {
      const { areNames } = KINDS[option.value];
      const isLacking = areNames && option.value !== "method" && !backend.computes;
      option.hidden = Boolean(isLacking || (option.value === "class" && facts.predictions.length < 2));
    }
    const differing = ["model", "picture", "method", "layer", "class"].find((name) =>
      !isEqual(KINDS[name].of(first, panes[0].facts), KINDS[name].of(second, facts)));
    const kind = this.kind || (differing ?? "head"), { offers, of, nameOf, areNames, menu } = KINDS[kind], value = of(second, facts);
    // In a list of names, A's own is none to compare with.
    const own = areNames ? of(first, panes[0].facts) : undefined, offered = offers(facts).filter((offer) => offer.value !== own);
    const known = offered.some((offer) => offer.value === value), title = value === own ? `another ${kind} …` : nameOf(pane);
    const options = [...(known ? [] : [{ title, value }]), ...offered, ...(menu ? [OWN] : [])];
    find("other-kind").value = kind;
    if (JSON.stringify(options) !== JSON.stringify(this.offers))
      find("other").replaceChildren(...options.map(({ title }) => new Option(title)));
    this.offers = options;
    find("other").selectedIndex = options.findIndex((offer) => offer.value === value);
    find("own_scales").checked = hasOwnScales();
    find("difference").checked = layout === "difference";
    const letter = "AB"[page.active];
    setText(find("active"), wordsOfFinger(`Sheet, layers and options change ${letter}; click the other map to change that one.`));
  }
}
