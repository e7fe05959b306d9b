// The panel of probes: its controls, and their findings.

import { runInPanel } from "./analyses.js";
import { keyOf } from "./chart.js";
import { setProbeParameter } from "./choices.js";
import { gradient } from "./colours.js";
import { asCsv } from "./csv.js";
import { create, createButton, find, listenTo, setText, tableRow } from "./dom.js";
import { asNpy, asNpyText, asPng, asZip, metadataOf, saveFile, stemOf } from "./files.js";
import { lookOfPanels } from "./look.js";
import { figuresOf } from "./measurements.js";
import { formOf } from "./numbers.js";
import { ParameterControls } from "./parameter_controls.js";
import { readPack } from "./packs.js";
import { activePane, activeView, page, requests, store } from "./page.js";
import { backend, PROBES, SCALES } from "./settings.js";
import { analysisKey } from "./store.js";
import { probeDefaultOf } from "./tokens.js";
import { wordsOfFinger } from "./touches.js";

export class Probes {
  constructor() {
    /** @type {any} */
    this.result = null;
    /** @type {any[]} */
    this.figures = [];
    // Of the view, once one is shown.
    const none = /** @type {any} */ (null);
    /** @type {View} */
    this.view = none;
    /** @type {Facts} */
    this.facts = none;
    /** @type {Model} */
    this.model = none;
    this.drawnInk = "";
    this.controls = new ParameterControls(find("probe-parameters"), "vx-probe-parameter", setProbeParameter, true);
    this.lookKey = "";
    this.requested = "";
    find("probe").replaceChildren(...Object.values(PROBES).map(({ name, title }) => new Option(title, name)));
    listenTo("change", { probe: ({ target }) => store.patchView(page.active, { probe: target.value, probe_parameters: {} }) });
    listenTo("click", {
      "probe-again": () => {
        this.requested = "";
        this.request();
      },
      "probe-csv": () => saveFile(asCsv([this.result.reply.heading, ...this.result.reply.rows]), this.fileName("csv"), "text/csv"),
      "probe-npz": async () => saveFile(await this.numbers(), this.fileName("npz")),
    });
    new ResizeObserver(() => this.draw()).observe(find("found"));
  }

  /**
   * Show the view's probe, or the reason why the model cannot have it.
   * @param {View} view
   * @param {Facts} facts
   * @param {Model} model
   */
  show(view, facts, model) {
    const { probe, probe_parameters: parameters } = view, record = PROBES[probe], refusal = model.probe_refusals[probe];
    Object.assign(this, { view, facts, model });
    find("probe").value = probe;
    Object.assign(find("about-probe"), { textContent: record.interpretation, title: record.citation });
    const key = JSON.stringify([probe, refusal, facts.uid, facts.layers]), valueOf = (/** @type {Parameter} */ item) =>
      parameters[item.name] ?? probeDefaultOf(item, facts);
    this.controls.show(key, refusal ? [] : record.parameters, valueOf, facts, model);
    if (refusal) {
      this.clear();
      this.say(refusal);
    }
    const { key: lookKey } = lookOfPanels();
    if (this.lookKey !== lookKey) {
      this.lookKey = lookKey;
      if (this.result) this.make();
    }
  }

  // ---- findings ----

  /** @param {string} text */
  say(text) {
    setText(find("probe-said"), text);
  }

  clear() {
    Object.assign(this, { result: null, figures: [] });
    find("found").replaceChildren();
    for (const name of ["probe-table", "probe-files", "probe-again"]) find(name).hidden = true;
    this.say("");
  }

  /** Request the findings of the view's probe while its panel is open. */
  request() {
    const { panel } = store.state, view = activeView(), pane = activePane();
    if (pane.facts && pane.key !== analysisKey(view)) return;
    const { probe, probe_parameters: parameters } = view;
    const isAsked = panel === "probes" && backend.computes && pane.painter && !pane.model.probe_refusals[probe];
    const { uid } = pane.facts ?? {}, key = isAsked ? JSON.stringify([pane.index, uid, probe, parameters]) : "";
    if (key === this.requested) return;
    this.requested = key;
    if (!key) return requests.drop("probe");
    // The findings are those from before the panel was closed.
    if (this.result?.key === key) return;
    // Previous findings of the same probe stay meanwhile.
    if (this.result?.reply.probe !== probe) this.clear();
    find("probe-again").hidden = true;
    this.say("Computing …");
    runInPanel("probe", key, { kind: "probe", uid, probe, parameters }, async (/** @type {any} */ reply) => {
      const tensors = readPack(await backend.made(reply.address));
      if (key === this.requested) this.showResult(reply, tensors, pane, key);
    }, (/** @type {string} */ text) => {
      this.clear();
      find("probe-again").hidden = false;
      this.say(text);
    });
  }

  /**
   * @param {any} reply of the request with this `key`; `tensors` is the pack of its measurements, `pane` has the analysis
   * @param {any} tensors
   * @param {Pane} pane
   * @param {string} key
   */
  showResult(reply, tensors, pane, key) {
    const measurements = Object.entries(tensors).map(([name, values]) => ({ name, values, ...JSON.parse(tensors.metadata[name]) }));
    this.result = { key, reply, pane, measurements, parameters: this.view.probe_parameters };
    this.say(reply.summary);
    const table = find("probe-table").querySelector("table");
    table.replaceChildren(
      create("thead", {}, create("tr", {}, ...reply.heading.map((/** @type {string} */ textContent) => create("th", { textContent })))),
      create("tbody", {}, ...reply.rows.map((/** @type {string[]} */ cells) => tableRow(cells))),
    );
    find("probe-table").hidden = reply.rows.length === 0;
    find("probe-files").hidden = false;
    // What was saved is of other findings.
    find("probe-saved").textContent = "";
    this.make();
  }

  make() {
    const { reply, pane, measurements, parameters } = this.result;
    this.figures = measurements.flatMap((/** @type {any} */ measurement) =>
      figuresOf(measurement, { probe: reply.probe, pane, measurements, parameters }),
    );
    find("found").replaceChildren(...this.figures.map((figure) => this.figure(figure)));
    this.draw();
  }

  /** @param {any} figure */
  figure(figure) {
    const kind = figure.chart ? "SVG" : "PNG", legend = create("div", { className: "vx-legend" });
    const button = createButton({ className: "vx-button", textContent: kind, onclick: () => this.save(figure) });
    button.setAttribute("aria-label", `${figure.title}: save as ${kind}`);
    figure.parts[0].setAttribute("role", "img");
    figure.parts[0].setAttribute("aria-label", figure.title);
    const figureElement = create(
      "figure",
      { className: figure.wide ? "vx-figure vx-wide" : "vx-figure" },
      create("figcaption", {}, create("span", { textContent: figure.title }), button),
      ...figure.parts,
      legend,
      create("p", { className: "vx-hint", textContent: wordsOfFinger(figure.note ?? "") }),
    );
    if (figure.key) figureElement.append(keyOf(figure.key));
    this.showLegend(legend, figure);
    return figureElement;
  }

  /**
   * @param {any} legend
   * @param {any} options
   */
  showLegend(legend, { scale, quantity }) {
    legend.hidden = !scale;
    if (!scale) return;
    const text = (/** @type {any} */ textContent) => create("span", { textContent }),
      [low, high] = scale.ends.map(formOf(quantity)).map(text);
    const ramp = create("span", { className: "vx-ramp", style: `background: ${gradient(lookOfPanels().table)}` });
    legend.replaceChildren(
      create("span", { className: "vx-bar-of" }, low, ramp, high),
      ...(scale.name === "linear" ? [] : [text(`${SCALES[scale.name].title.toLowerCase()} scale`)]),
    );
  }

  /** Draw the figures whose width or colour of text has changed: a click is lost if its element is replaced meanwhile. */
  draw() {
    const ink = getComputedStyle(find("found")).color, isOtherInk = this.drawnInk !== ink;
    for (const figure of this.figures) {
      const width = figure.parts[0].parentElement?.clientWidth;
      if (width && (isOtherInk || figure.width !== width)) figure.draw(width, ink);
      figure.width = width;
    }
    this.drawnInk = ink;
  }

  // ---- files ----

  /** @param {any} suffix */
  fileName(suffix) {
    return `${stemOf(this.facts)}-${this.result.reply.probe}.${suffix}`;
  }

  /** @param {any} figure */
  async save(figure) {
    const name = figure.title.replace(/\W+/g, "-").replace(/^-|-$/g, "").toLowerCase();
    if (figure.chart) return saveFile(figure.chart.file(), this.fileName(`${name}.svg`), "image/svg+xml");
    saveFile(await asPng(figure.mosaic.picture()), this.fileName(`${name}.png`));
  }

  /** The measurements and their metadata (JSON), under the names of `vitviz probe --output`. */
  numbers() {
    const { reply, measurements, parameters, pane } = this.result, files = /** @type {Record<string, any>} */ ({});
    for (const { name, values } of measurements) files[`${reply.probe}.${name}.npy`] = asNpy(values, values.shape);
    const metadata = Object.fromEntries(
      measurements.map((/** @type {any} */ { name, axes, quantity, names }) => [name, { axes, quantity, names }]),
    );
    files["about.npy"] = asNpyText(
      JSON.stringify({
        ...metadataOf(pane),
        probe: reply.probe,
        parameters,
        summary: reply.summary,
        measurements: metadata,
      }),
    );
    return asZip(files);
  }
}
