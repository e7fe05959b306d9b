// The five questions: tabs over the methods, hiding, and what is alike.

import { SAME_COLOUR } from "./alike.js";
import { showLead } from "./answer.js";
import { chooseAlike, chooseLayout, chooseMethod, methodOf } from "./choices.js";
import { labelOf } from "./class_names.js";
import { createButton, find, root, setText } from "./dom.js";
import { canHide } from "./hiding.js";
import { offeredMethods } from "./map_sources.js";
import { activeTarget, isAlike, isDouble, isHiding, page, panes, store } from "./page.js";
import { classOf, isFarLook } from "./tokens.js";
import { backend, METHODS } from "./settings.js";

// By the group of their methods; hiding and what is alike have none. Of a class in quotes, of whether another token asks than the
// classifier's, of the first token that is no patch, and of whether the model names classes.
/** @typedef {{ quoted: string, isOther: boolean, start: string, hasClasses: boolean }} LeadFacts */
/** @type {Record<string, { title: string, lead: (about: LeadFacts) => string }>} */
export const QUESTIONS = {
  token: {
    title: "Where it looks",
    lead: ({ isOther, start }) =>
      `${isOther || start !== "cls" ? "The square you point at asks" : "CLS, the token that carries the answer, asks"}; `
      + "bright squares are where it looks.",
  },
  target: {
    title: "Why",
    lead: ({ quoted, isOther, hasClasses }) => `Bright squares speak for ${quoted || "what is asked about"}`
      + `${isOther ? ", as the chosen square sees it" : ""}.${hasClasses ? " Click a prediction to ask about another class." : ""}`,
  },
  layers: {
    title: "All layers",
    lead: ({ isOther }) =>
      `Squares that could have influenced ${isOther ? "the chosen one" : "the result"} over all layers, whatever the class.`,
  },
  hide: {
    title: "Unless",
    lead: ({ hasClasses }) => "Paint over squares to hide them from the model, and see "
      + `${hasClasses ? "its answer" : "the likeness"} change. A click shows one again.`,
  },
  alike: {
    title: "What is alike",
    lead: () => SAME_COLOUR,
  },
};

// Of a model without classes, before a picture is chosen.
const WHAT_TO_ASK = ["Choose a picture", "Write a text, or choose a picture,"].map((choice) =>
  `${choice} under Method and options: bright squares are then what makes this one like it.`);
const NOTHING_CHANGES = "Say under Why first what the picture may be like: hiding squares changes the likeness";

/** The question that the state answers. */
const questionOf = () => (isAlike() ? "alike" : isHiding() ? "hide" : METHODS[store.state.views[page.active].method].group);

/** @param {string} name */
function ask(name) {
  if (name === questionOf()) return;
  if (name === "alike") return chooseAlike();
  if (isAlike()) chooseLayout("one");
  if (name === "hide") return store.patch({ panel: "switches" });
  if (isHiding()) store.patch({ panel: "" });
  if (questionOf() === name) return;
  chooseMethod(methodOf(name));
}

export class Questions {
  constructor() {
    find("tabs").replaceChildren(...Object.keys(QUESTIONS).map((name) => createButton({
      className: "vx-tab", role: "tab", onclick: () => ask(name), dataset: { question: name },
    })));
    find("tabs").onkeydown = (/** @type {KeyboardEvent} */ event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      const tabs = [...find("tabs").children].filter((tab) => !tab.hidden && !tab.disabled);
      if (!step) return;
      const next = tabs[(tabs.indexOf(/** @type {any} */ (document.activeElement)) + step + tabs.length) % tabs.length];
      next.focus();
      next.click();
      event.preventDefault();
    };
  }

  /**
   * @param {View} view
   * @param {Facts} facts
   * @param {Model} model
   */
  show(view, facts, model) {
    const chosen = questionOf(), offered = offeredMethods(facts, model),
      // From what is alike, the other questions lead back to the first picture.
      best = ((isAlike() && panes[0].facts) || facts).predictions[0]?.index;
    const target = activeTarget(isAlike() ? 0 : page.active), isUnasked = !model.labels.length && target === null;
    if (root.dataset.question !== chosen && chosen === "target" && isUnasked) find("options").open = true;
    const about = typeof target === "number" ? target : best;
    const isOfClass = about !== undefined && (target === null || typeof target === "number");
    const quoted = isOfClass ? `“${labelOf(model, about).split(",")[0]}”` : "";
    const like = target?.like ? "likeness to the other picture" : target?.text ? `“${target.text}”` : "";
    for (const tab of find("tabs").children) {
      const name = tab.dataset.question;
      tab.hidden = name === "alike" ? !backend.has("alike")
        : name === "hide" ? !canHide(model) : !offered.some((method) => method.group === name);
      setText(tab, name === "target" ? `Why ${quoted}`.trim() : QUESTIONS[name].title);
      tab.setAttribute("aria-selected", name === chosen);
      Object.assign(tab, name === "hide" && { disabled: isUnasked, title: isUnasked ? NOTHING_CHANGES : "" });
      tab.tabIndex = name === chosen ? 0 : -1;
      // On a phone, the last tabs are beyond the edge.
      if (name === chosen && root.dataset.question !== chosen) find("tabs").scrollLeft = tab.offsetLeft;
    }
    root.dataset.question = chosen;
    const isOther = ![undefined, "cls"].includes(view.parameters.query);
    const names = isDouble() && chosen === "target" ? panes.map(({ view: each, facts: of, model: its }) => {
      const index = of && classOf(each, of);
      return index === undefined ? "" : `“${labelOf(its, index).split(",")[0]}”`;
    }) : [];
    if (names.every(Boolean) && names[0] !== names[1])
      return showLead(`Bright squares speak for ${names[0]} in A, and for ${names[1]} in B.`);
    // That of a far look goes with the pointer.
    if (isHiding() && model.why_no_hiding)
      return showLead(`Squares cannot be hidden here (${model.why_no_hiding}); a click on the sheet switches a head off.`);
    if (isAlike() || isHiding() || !isFarLook(view, facts)) showLead(
      chosen === "target" && isUnasked ? WHAT_TO_ASK[Number(model.reads_text)]
        : QUESTIONS[chosen].lead({ quoted: quoted || like, isOther, start: facts.prefix[0], hasClasses: best !== undefined }));
  }
}
