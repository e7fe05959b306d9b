// The controls of parameters, made from their records: of a method below the map, and of a probe in its panel.

import { FUSIONS } from "./attention.js";
import { create, labelled, newId } from "./dom.js";
import { digits, range } from "./numbers.js";
import { TargetField } from "./target_field.js";
import { nameOf } from "./token_names.js";
import { wordsOfFinger } from "./touches.js";

/** @typedef {{facts: Facts, model: Model, choose: (value: any) => void, isSlow: boolean}} ControlContext */
/** @typedef {{parts: (Node | string)[], show: (value: any) => void}} Control */

/**
 * @param {Parameter} record
 * @param {any[]} bounds lowest and highest number, and step.
 * @param {(value: any) => string} textOf
 * @param {ControlContext} context
 * @returns {Control}
 */
function slider({ title }, [min, max, step], textOf, { choose, isSlow }) {
  const input = create("input", { type: "range", min, max, step }), text = create("span", { className: "vx-value" });
  const show = (/** @type {any} */ value) => {
    input.value = value;
    text.textContent = textOf(value);
  };
  input.oninput = () => show(Number(input.value));
  input[isSlow ? "onchange" : "oninput"] = () => choose(Number(input.value));
  return { parts: [labelled(title, text, input)], show };
}

/**
 * @param {Parameter} record
 * @param {{title: string, value: any}[]} options
 * @param {ControlContext} context
 * @returns {Control}
 */
function radios(record, options, { choose }) {
  const name = newId(), inputs = options.map(({ value }) =>
    create("input", { type: "radio", name, value: JSON.stringify(value), onchange: () => choose(value) }));
  const labels = inputs.map((input, index) => create("label", {}, input, create("span", { textContent: options[index].title })));
  return {
    parts: [create("legend", { textContent: record.title }), ...labels],
    show: (value) => inputs.forEach((input) => { input.checked = input.value === JSON.stringify(value ?? null); }),
  };
}

/**
 * A token of a map is chosen on the picture; of a probe, also the patch of a click on its figure.
 * @param {Parameter} record
 * @param {ControlContext} context
 * @returns {Control}
 */
function tokens({ title }, { facts, choose, isSlow }) {
  const hint = create("p", {
    className: "vx-hint", textContent: wordsOfFinger("Token: click a patch, or one of the names in the picture’s corner."),
  });
  if (!isSlow) return { parts: [hint], show: () => {} };
  const select = create("select", { onchange: () => choose(JSON.parse(select.value)) });
  const middle = /** @type {Cell} */ ([Math.floor(facts.rows / 2), Math.floor(facts.columns / 2)]);
  return { parts: [labelled(title, select)], show: (query) => {
    const offered = /** @type {Query[]} */ ([Array.isArray(query) ? query : middle, ...facts.prefix, "patches"]);
    select.replaceChildren(...offered.map((each) => new Option(nameOf(each), JSON.stringify(each))));
    select.value = JSON.stringify(query);
  } };
}

/**
 * By the kind of a parameter, as `vitviz/attribution/parameters.py` names them.
 * @type {Record<string, (record: Parameter, context: ControlContext) => Control>}
 */
const PARAMETER_CONTROLS = {
  number: (record, context) => slider(record, [record.minimum, record.maximum, record.step], digits, context),
  layer: (record, context) => {
    const last = context.facts.layers - 1;
    return slider(record, [0, last, 1], (value) => `${value} of 0–${last}`, context);
  },
  choice: (record, context) => radios(record, record.options, context),
  head: (record, context) =>
    radios(record, [...Object.keys(FUSIONS), ...range(context.facts.heads)].map((value) => ({ title: String(value), value })), context),
  switch: ({ title }, { choose }) => {
    const input = create("input", { type: "checkbox", onchange: () => choose(input.checked) });
    return { parts: [create("label", {}, input, ` ${title}`)], show: (value) => { input.checked = value; } };
  },
  token: tokens,
  class: (_, { model, choose }) => {
    const field = new TargetField(model, choose);
    return { parts: field.parts, show: (value) => field.show(value) };
  },
};

/** The controls of the parameters of one method or probe at a time. */
export class ParameterControls {
  /**
   * @param {HTMLElement} holder
   * @param {string} className of each.
   * @param {(name: string, value: any) => void} choose
   * @param {boolean} isSlow whether each choice starts a run.
   */
  constructor(holder, className, choose, isSlow = false) {
    Object.assign(this, { holder, className, choose, isSlow });
    /** @type {any} */
    this.key = null;
    /** @type {(Control & {record: Parameter})[]} */
    this.controls = [];
  }

  /**
   * Show values; with another key, of other parameters or of another model.
   * @param {string} key
   * @param {Parameter[]} records
   * @param {(record: Parameter) => any} valueOf
   * @param {Facts} facts
   * @param {Model} model
   */
  show(key, records, valueOf, facts, model) {
    if (this.key !== key) {
      const { choose, isSlow, className, holder } = /** @type {any} */ (this);
      this.key = key;
      this.controls = records.map((record) =>
        ({ record, ...PARAMETER_CONTROLS[record.kind](record, { facts, model, isSlow, choose: (value) => choose(record.name, value) }) }));
      holder.replaceChildren(...this.controls.map(({ record: { kind, name, help }, parts }) =>
        create(kind === "head" || kind === "choice" ? "fieldset" : "div", {
          className: `vx-field ${className} ${className}-${kind}`, title: `${help}. In Python: ${name}`, dataset: { name },
        }, ...parts)));
    }
    for (const { record, show } of this.controls) show(valueOf(record));
  }
}
