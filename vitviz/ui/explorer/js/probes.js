// The panel that looks into a model: what is chosen, and what was found.

class Probes {
  /**
   * @param hooks probe(name), parameter(name, value), head(layer, head) to be shown on the canvas, again(),
   *   look() the colours of maps, what fits their scale, how they lie on the picture, and a key of all this
   */
  constructor(root, hooks) {
    Object.assign(this, { root, hooks, found: null, figures: [], made: "", painted: "", followed: null });
    this.find = (name) => root.querySelector(`.vx-${name}`);
    this.find("probe").replaceChildren(...Object.values(PROBES).map(({ name, title }) => new Option(title, name)));
    this.find("probe").onchange = () => hooks.probe(this.find("probe").value);
    this.find("probe-again").onclick = () => hooks.again();
    this.find("probe-csv").onclick = () => save(this.csv(), this.fileName("csv"), "text/csv");
    this.find("probe-npz").onclick = () => save(this.numbers(), this.fileName("npz"));
    new ResizeObserver(() => this.draw()).observe(this.find("found"));
  }

  /** Say what is chosen; of a probe that the model cannot have, why. */
  show(view, facts, model) {
    const { probe, probe_parameters: parameters } = view, record = PROBES[probe], refusal = model.probe_refusals[probe];
    Object.assign(this, { view, facts, model });
    this.find("probe").value = probe;
    this.find("about-probe").textContent = record.interpretation;
    this.find("about-probe").title = record.citation;
    const made = JSON.stringify([probe, refusal, facts.uid, facts.layers, parameters.query]);
    if (this.made !== made) {
      this.made = made;
      this.find("probe-parameters").replaceChildren(...(refusal ? [] : record.parameters.map((each) => this.control(each))));
    }
    for (const each of record.parameters) this.showParameter(each, parameters[each.name] ?? defaultOf(each, facts));
    if (refusal) {
      this.clear();
      this.say(refusal);
    }
    const { key } = this.hooks.look();
    if (this.painted !== key) {
      this.painted = key;
      if (this.found) this.make();
    }
  }

  // ---- controls ----

  control(record) {
    const input = this[`make_${record.kind}`](record);
    // Else its name would be that of all options together.
    input[0].setAttribute("aria-label", record.title);
    return create("label", { title: record.help, dataset: { name: record.name } }, `${record.title} `, ...input);
  }

  make_layer(record) {
    const input = create("input", { type: "range", min: 0, max: this.facts.layers - 1, step: 1 }), said = create("span");
    input.oninput = () => { said.textContent = input.value; };
    input.onchange = () => this.hooks.parameter(record.name, Number(input.value));
    return [input, said];
  }

  selected(record, options) {
    const select = create("select", {}, ...options.map(([title, value]) => new Option(title, JSON.stringify(value))));
    select.onchange = () => this.hooks.parameter(record.name, JSON.parse(select.value));
    return [select];
  }

  make_choice(record) {
    return this.selected(record, record.options.map(({ title, value }) => [title, value]));
  }

  /** What is no patch can be chosen here; a patch by a click on what is shown. */
  make_token(record) {
    const chosen = this.view.probe_parameters[record.name], patch = Array.isArray(chosen) ? chosen : defaultOf(record, this.facts);
    return this.selected(record, [patch, ...this.facts.prefix, "patches"].map((query) => [nameOf(query), query]));
  }

  showParameter({ name, kind }, value) {
    const label = this.find("probe-parameters").querySelector(`[data-name="${name}"]`);
    if (!label) return;
    label.querySelector("input, select").value = kind === "layer" ? value : JSON.stringify(value);
    if (kind === "layer") label.querySelector("span").textContent = `${value} of 0–${this.facts.layers - 1}`;
  }

  // ---- what was found ----

  say(text) {
    if (this.find("probe-said").textContent !== text) this.find("probe-said").textContent = text;
  }

  clear() {
    Object.assign(this, { found: null, figures: [] });
    this.find("found").replaceChildren();
    for (const name of ["probe-table", "probe-files", "probe-again"]) this.find(name).hidden = true;
    this.say("");
  }

  /** What was found before stays until the new is there, of the same probe. */
  waiting() {
    if (this.found?.reply.probe !== this.view.probe) this.clear();
    this.find("probe-again").hidden = true;
    this.say("Computing …");
  }

  failed(text) {
    this.clear();
    this.find("probe-again").hidden = false;
    this.say(text);
  }

  /** @param reply of `run`; `tensors` the pack of its measurements, `pane` what it is of, `key` of the request */
  showFound(reply, tensors, pane, key) {
    const measurements = Object.entries(tensors).map(([name, values]) => ({ name, values, ...JSON.parse(tensors.about[name]) }));
    this.found = { key, reply, pane, measurements, parameters: this.view.probe_parameters };
    this.say(reply.summary);
    const table = this.find("probe-table").querySelector("table");
    const row = (cells, tag) => create("tr", {}, ...cells.map((textContent) => create(tag, { textContent })));
    table.replaceChildren(create("thead", {}, row(reply.heading, "th")), create("tbody", {}, ...reply.rows.map((cells) => row(cells, "td"))));
    this.find("probe-table").hidden = reply.rows.length === 0;
    this.find("probe-files").hidden = false;
    this.make();
  }

  make() {
    const { reply, pane, measurements, parameters } = this.found;
    this.followed = null;
    this.figures = measurements.flatMap((measurement) => figuresOf(measurement, { probe: reply.probe, pane, measurements, parameters, hooks: this.hooks }));
    this.find("found").replaceChildren(...this.figures.map((figure) => this.figure(figure)));
    this.draw();
  }

  figure(figure) {
    const kind = figure.chart ? "SVG" : "PNG", name = create("span"), legend = create("div", { className: "vx-legend" }), note = create("p", { className: "vx-hint" });
    const button = createButton({ className: "vx-button", textContent: kind, onclick: () => this.save(figure) });
    const part = create("figure", { className: figure.wide ? "vx-figure vx-wide" : "vx-figure" }, create("figcaption", {}, name, button), ...figure.parts, legend, note);
    if (figure.key) part.append(keyOf(figure.key));
    figure.label = () => {
      name.textContent = figure.title;
      button.setAttribute("aria-label", `${figure.title}: save as ${kind}`);
      figure.parts[0].setAttribute("role", "img");
      figure.parts[0].setAttribute("aria-label", figure.title);
      note.textContent = figure.note ?? "";
      note.hidden = !figure.note;
      this.showLegend(legend, figure);
    };
    if (figure.follow) figure.changed = (token) => this.followWith(figure, token);
    figure.label();
    return part;
  }

  showLegend(legend, { scale, quantity }) {
    legend.hidden = !scale;
    if (!scale) return;
    const said = (textContent) => create("span", { textContent }), [low, high] = scale.ends.map(formOf(quantity)).map(said);
    const ramp = create("span", { className: "vx-ramp", style: `background: ${gradient(this.hooks.look().table)}` });
    legend.replaceChildren(create("span", { className: "vx-bar-of" }, low, ramp, high), ...(scale.name === "linear" ? [] : [said(`${SCALES[scale.name].title.toLowerCase()} scale`)]));
  }

  get ink() {
    return getComputedStyle(this.find("found")).color;
  }

  /** Draw as wide as there is room. */
  draw() {
    for (const figure of this.figures) {
      const width = figure.parts[0].parentElement?.clientWidth;
      if (width) figure.draw(width, this.ink);
    }
    this.drawn = this.ink;
  }

  followWith(figure, token) {
    figure.follow(token);
    figure.label();
    figure.draw(figure.parts[0].parentElement.clientWidth, this.ink);
  }

  /** The query under the pointer on the canvas; null where there is none. */
  follow(pane, query) {
    if (!this.found || this.found.pane !== pane || !this.find("found").clientWidth) return;
    if (this.drawn !== this.ink) this.draw();
    const token = query === null ? null : tokenOf(query, pane.facts, pane.model);
    if (token === this.followed) return;
    this.followed = token;
    for (const figure of this.figures) if (figure.follow) this.followWith(figure, token);
  }

  // ---- files ----

  fileName(suffix) {
    const picture = this.facts.name.replace(/\.[^.]*$/, "") || "picture";
    return `${picture}-${this.found.reply.probe}.${suffix}`;
  }

  async save(figure) {
    const name = figure.title.replace(/\W+/g, "-").replace(/^-|-$/g, "").toLowerCase();
    if (figure.chart) return save(figure.chart.file(), this.fileName(`${name}.svg`), "image/svg+xml");
    save(await asPng(figure.mosaic.picture()), this.fileName(`${name}.png`));
  }

  csv() {
    const quoted = (cell) => (/[",\n]/.test(cell) ? `"${cell.replace(/"/g, '""')}"` : cell), { heading, rows } = this.found.reply;
    return [heading, ...rows].map((cells) => `${cells.map(quoted).join(",")}\r\n`).join("");
  }

  /** The measurements, and what they are of (JSON), under the names that `vitviz probe --output` gives them. */
  numbers() {
    const { reply, measurements, parameters, pane } = this.found, { facts, model } = pane, files = {};
    for (const { name, values } of measurements) files[`${reply.probe}.${name}.npy`] = asNpy(values, values.shape);
    const about = Object.fromEntries(measurements.map(({ name, axes, quantity, names }) => [name, { axes, quantity, names }]));
    files["about.npy"] = asNpyText(JSON.stringify({
      made_by: "vitviz", model: model.name, step: facts.step, picture: facts.name, fit: facts.fit, resolution: facts.resolution,
      probe: reply.probe, parameters, summary: reply.summary, prefix: facts.prefix, grid: [facts.rows, facts.columns], measurements: about,
    }));
    return asZip(files);
  }
}
