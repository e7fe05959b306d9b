// The controls of the map, made from the methods' records, and the controls of its look.

import { chooseDivider, chooseMethod, holdScale, setLook, setParameter } from "./choices.js";
import { colours } from "./colour_tables.js";
import { create, find, listenTo, setText } from "./dom.js";
import { isHeldFor } from "./look.js";
import { offeredMethods } from "./map_sources.js";
import { notify } from "./messages.js";
import { ParameterControls } from "./parameter_controls.js";
import { QUESTIONS } from "./questions.js";
import { backend, METHODS, SCALES, SETTINGS } from "./settings.js";
import { isPaired } from "./store.js";
import { valueOf } from "./tokens.js";

const LOOK = {
  colormap: String,
  opacity: Number,
  fade: Boolean,
  drain: Boolean,
  smooth: Boolean,
  grid: Boolean,
  outliers: Boolean,
  shared_scale: Boolean,
};

export class Controls {
  constructor() {
    this.controlsKey = this.quantity = "";
    /** @type {FittedScale | null} */
    this.fitted = null;
    this.parameters = new ParameterControls(find("parameters"), "vx-parameter", setParameter);
    find("colormap").replaceChildren(...Object.keys(colours).map((name) => new Option(name)));
    find("scale").replaceChildren(
      ...SETTINGS.scales.map(({ name, title, help }) => Object.assign(new Option(title, name ?? ""), { title: help })),
    );
    listenTo("input", { divider: ({ target }) => chooseDivider(Number(target.value)) });
    listenTo("change", {
      method: ({ target }) => chooseMethod(target.value),
      scale: ({ target }) => setLook("scale", target.value || null),
      hold: ({ target }) => holdScale(target.checked ? this.fitted : null, this.quantity),
    });
    for (const input of this.percentileInputs) input.onchange = () => this.choosePercentiles();
    for (const [name, type] of Object.entries(LOOK)) {
      const control = find(name);
      control[type === Number ? "oninput" : "onchange"] = () => setLook(name, type === Boolean ? control.checked : type(control.value));
    }
  }

  get percentileInputs() {
    return ["low", "high"].map((end) => find(`percentile-${end}`));
  }

  choosePercentiles() {
    const pair = this.percentileInputs.map((input) => (input.value === "" ? NaN : Number(input.value))), [low, high] = pair;
    if (low >= 0 && low < high && high <= 100) return setLook("percentiles", pair);
    const text = this.percentileInputs.map((input) => input.value || "nothing").join(" to ");
    notify(`Percentiles ${text}: expected two numbers from 0 to 100, the lower one first.`);
    this.percentileInputs.forEach((input, index) => { input.value = this.percentiles[index]; });
  }

  /**
   * Show the scale of the state, and the one that the automatic choice leads to for the map.
   * @param {any} options
   * @param {any} fitted
   * @param {string} quantity
   */
  showScale({ scale, percentiles }, fitted, quantity) {
    [this.fitted, this.quantity] = [fitted, quantity];
    find("hold").checked = isHeldFor(quantity);
    // One that is held is that of maps without a sign.
    find("hold").disabled = !find("hold").checked && (!fitted || fitted.signed);
    const select = find("scale"), name = scale ?? "", chosen = scale === null && fitted;
    setText(select.options[0], chosen ? `Automatic (${SCALES[fitted.name].title.toLowerCase()})` : "Automatic");
    Object.assign(select, { value: name, title: SCALES[name].help });
    // Hidden for the automatic scale: it may change with every map, and the controls must not move under the pointer.
    find("percentiles").hidden = scale !== "robust";
    this.percentiles = percentiles;
    this.percentileInputs.forEach((input, index) => { if (document.activeElement !== input) input.value = percentiles[index]; });
  }

  /**
   * Show the state; another method or model gets new controls.
   * @param {State} state
   * @param {number} index
   * @param {Facts} facts
   * @param {Model} model
   * @param {any} playing
   */
  show(state, index, facts, model, playing) {
    const view = state.views[index];
    const key = JSON.stringify([view.method, model.id, facts.layers, facts.heads, facts.prefix, facts.rows, facts.columns]);
    if (this.controlsKey !== key) {
      this.controlsKey = key;
      this.make(view, facts, model);
    }
    find("method").value = view.method;
    this.parameters.show(key, shownParameters(view.method), ({ name }) => valueOf(view, name, facts), facts, model);
    find("play").setAttribute("aria-pressed", playing);
    setText(find("play"), playing ? "■" : "▶");
    for (const [name, type] of Object.entries(LOOK)) find(name)[type === Boolean ? "checked" : "value"] = /** @type {any} */ (state)[name];
    find("outliers").disabled = !facts.outliers;
    find("divider").value = state.layout === "slide" ? state.divider : 1;
    find("divided").hidden = isPaired(state.layout);
  }

  /**
   * @param {View} view
   * @param {Facts} facts
   * @param {Model} model
   */
  make(view, facts, model) {
    const offered = offeredMethods(facts, model);
    find("method").replaceChildren(...Object.entries(QUESTIONS).flatMap(([group, { title }]) => {
      const options = offered
        .filter((method) => method.group === group)
        .map(({ name, title: optionTitle }) => new Option(optionTitle, name));
      if (!options.length) return [];
      return [create("optgroup", { label: title }, ...options)];
    }));
    const { interpretation, citation } = METHODS[view.method];
    find("about-method").textContent = interpretation;
    find("about-method").title = citation;
    find("absent").textContent = SETTINGS.absent ?? "";
  }
}

/** @param {string} method */
const shownParameters = (method) =>
  METHODS[method].parameters.filter(
    ({ name, kind, on_page = true }) =>
      on_page && (backend.computes || METHODS[method].page_parameters.includes(name) || kind === "token"),
  );
