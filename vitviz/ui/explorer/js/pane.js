// One map of one analysis: its picture, what is said below it, and its prefix tokens above it.

// A patch whose map only the server can compute is asked for when the pointer rests so long.
const REST = 150;
// More prefix tokens than these stand behind one button.
const MAX_CHIPS = 3;
// What the page computes raw attention from; with any other parameter the server does.
const LIVE_PARAMETERS = ["direction", "layer", "head", "query"];
/** A map without the identity term of one patch, which is far above all others and says nothing. */
const withoutOwn = (values, own) => (own === undefined ? values : values.map((value, token) => (token === own ? NaN : value)));
const isLive = (method, names) => METHODS[method].live && names.every((name) => LIVE_PARAMETERS.includes(name));

class Pane {
  /**
   * @param element of class vx-pane
   * @param hooks hover(pane, token, event), choose(pane, query), pin(pane, token), changed(pane, error),
   *   fetchFile(pane, facts, name), wanted(pane, names), isOpening() of a link, before which nothing is asked for
   */
  constructor(element, index, hooks) {
    Object.assign(this, { element, index, hooks, facts: null, model: null, packs: null, attention: null, painter: null });
    Object.assign(this, { view: null, key: "", shown: null, resting: 0, rested: null, unfolded: false });
    const canvas = this.find("canvas");
    canvas.onpointermove = (event) => event.pointerType !== "touch" && hooks.hover(this, this.tokenAt(event), event);
    canvas.onpointerleave = () => hooks.hover(this, null);
    canvas.onclick = (event) => {
      if (canvas.dataset.held) return delete canvas.dataset.held;
      canvas.focus({ preventScroll: true });
      const token = this.tokenAt(event);
      if (token !== null) event.shiftKey ? hooks.pin(this, token) : hooks.choose(this, queryOf(token, this.facts));
    };
    canvas.ondblclick = (event) => this.tokenAt(event) !== null && hooks.pin(this, this.tokenAt(event));
    this.holdToPin(canvas);
  }

  /** A finger that stays pins the patch under it. */
  holdToPin(canvas) {
    let timer = 0;
    canvas.addEventListener("pointerdown", (event) => {
      if (event.pointerType !== "touch") return;
      timer = setTimeout(() => {
        const token = this.tokenAt(event);
        if (token === null) return;
        canvas.dataset.held = "true";
        this.hooks.pin(this, token);
      }, 500);
    });
    for (const name of ["pointerup", "pointercancel", "pointermove"]) canvas.addEventListener(name, (event) => {
      if (name !== "pointermove" || Math.hypot(event.movementX, event.movementY) > 6) clearTimeout(timer);
    });
    canvas.oncontextmenu = (event) => canvas.dataset.held && event.preventDefault();
  }

  find(name) {
    return this.element.querySelector(`.vx-${name}`);
  }

  /** Take over an analysis: `facts` and the `model` as facts.py describes them. */
  async load(facts, model, view) {
    this.close();
    Object.assign(this, { facts, model, view, key: analysisKey(view) });
    const fetchFile = (name) => this.hooks.fetchFile(this, facts, name);
    this.packs = new Packs(fetchFile, (name, error) => this.facts === facts && this.hooks.changed(this, error));
    this.attention = new Attention(facts, this.packs);
    this.want();
    const picture = new Image();
    picture.src = addressOfFile(facts.picture);
    try {
      await picture.decode();
    } catch {
      return this.facts === facts && this.hooks.changed(this, Object.assign(Error("The picture cannot be fetched"), { expired: true }));
    }
    if (this.facts !== facts) return;
    this.painter = new Painter(facts, picture);
    this.hooks.changed(this, null);
  }

  close() {
    this.packs?.close();
    clearTimeout(this.resting);
    Object.assign(this, { facts: null, packs: null, attention: null, painter: null, shown: null, rested: null, key: "" });
    this.find("chips").replaceChildren();
    delete this.find("chips").dataset.names;
    this.showLegend(null);
    delete this.find("canvas").dataset.loaded;
  }

  /** Show another map of the same analysis. */
  follow(view) {
    this.view = view;
    this.want();
  }

  /** The query of a map for which none was chosen, where it is not the model's: likeness to a patch is read from all patches. */
  get defaultQuery() {
    return this.hasToken && this.view.parameters.target?.patch ? "patches" : undefined;
  }

  /** The query that was chosen. */
  get chosen() {
    return this.view.parameters.query ?? this.defaultQuery;
  }

  /** The token that was chosen; null for a query that is no single token. */
  get token() {
    return tokenOf(this.chosen, this.facts, this.model);
  }

  /** Whether another token can be asked about. */
  get hasToken() {
    return hasParameter(this.view.method, "query");
  }

  /** Ask for the files that are needed, the nearest layers first. */
  want() {
    if (!this.packs || this.hooks.isOpening()) return;
    const layer = valueOf(this.view, "layer", this.facts) ?? this.facts.layers - 1;
    const distance = (number) => Math.abs(number - layer);
    const near = [...Array(this.facts.layers).keys()].sort((one, other) => distance(one) - distance(other));
    const files = [this.fileOf(this.chosen), ...(this.rested === null ? [] : [this.fileOf(this.rested)])];
    files.push(...(this.hasToken ? this.view.pins.map((query) => this.fileOf(query)) : []));
    const names = [...new Set([...files.filter(Boolean), ...near.map((number) => `layer ${number}`)])];
    this.hooks.wanted(this, names);
    this.packs.want(names);
  }

  /** The file that a query's map is in; null where it is computed here. */
  fileOf(query) {
    const { method, parameters } = this.view, token = tokenOf(query, this.facts, this.model);
    if (isLive(method, Object.keys(parameters)) && token !== null) return null;
    const others = Object.keys(parameters).filter((name) => name !== "query");
    if (method === "rollout" && this.facts.rolls && token !== null && !others.length) return "rollout";
    const asked = { ...parameters };
    if (this.hasToken) {
      delete asked.query;
      const chosen = query ?? this.defaultQuery;
      if (chosen !== undefined && chosen !== null) asked.query = chosen;
    }
    return mapName(method, asked);
  }

  /** The map of a query: "token"; null while it is not there. */
  values(query) {
    const { method } = this.view, token = tokenOf(query, this.facts, this.model), file = this.fileOf(query);
    if (file === null) {
      const [layer, head] = [valueOf(this.view, "layer", this.facts), valueOf(this.view, "head", this.facts)];
      return this.attention.map(layer, head, token, valueOf(this.view, "direction", this.facts));
    }
    if (file === "rollout") return this.attention.rollout(token);
    return this.packs.get(file)?.values ?? null;
  }

  /** What a map of the server says of itself: description, quantity, bound. */
  about(query) {
    const file = this.fileOf(query);
    return (file && this.packs.get(file)?.about) || {};
  }

  /** The asking patch, where its map holds an identity term of its own; undefined elsewhere. */
  itself(query) {
    const { self } = this.about(query);
    if (self !== undefined) return Number(self);
    const asks = query ?? this.defaultQuery;
    return METHODS[this.view.method].begins_with_identity && Array.isArray(asks) ? tokenOf(asks, this.facts, this.model) : undefined;
  }

  /** What is drawn of a map: all but the asking patch's own identity. */
  drawn(query, values) {
    return values && withoutOwn(values, this.itself(query));
  }

  /** The patches that a scale is fitted to, of what is drawn. */
  scaled(drawn) {
    return drawn && withoutNaN(drawn.subarray(this.attention.prefix));
  }

  /** Whether zero lies in the middle of the colours. */
  signed(query) {
    return this.about(query).signed === "true";
  }

  /** The query under the pointer: asked of the server only once it rests there. */
  rest(query) {
    clearTimeout(this.resting);
    if (same(this.rested, query)) return;
    // A saved page has nobody to ask.
    if (query === null || OFFLINE || !this.fileOf(query) || this.values(query)) {
      this.rested = query === null ? null : this.rested;
      return;
    }
    this.resting = setTimeout(() => {
      this.rested = query;
      this.want();
    }, REST);
  }

  /** Draw a map, or one that was made of several, on a scale. */
  show(query, drawn, scale, table, look, marks) {
    const canvas = this.find("canvas"), patches = drawn?.subarray(this.attention.prefix);
    const chosen = this.hasToken ? [{ token: tokenOf(query, this.facts, this.model), colour: "white" }] : [];
    this.shown = { patches, scale, table, look, marks: [...marks, ...chosen] };
    fitted(canvas, this.painter.ratio);
    this.drawOn(canvas, this.painter, look);
    canvas.dataset.loaded = drawn ? this.facts.uid : "";
  }

  /** What is shown on a canvas of any size, by a painter of the same picture. */
  drawOn(canvas, painter, look) {
    const { patches, scale, table, marks } = this.shown;
    painter.paint(canvas, patches, scale, table, look);
    for (const { token, colour, isDashed } of marks) {
      if (token === null || token < this.attention.prefix) continue;
      painter.mark(canvas, this.attention.cell(token), colour, Math.max(1, canvas.width / 300), isDashed);
    }
    for (const place of this.view.patches_off) painter.cross(canvas, place);
  }

  /** The pins' tokens, each with its colour. */
  get marks() {
    if (!this.hasToken) return [];
    return this.view.pins.map((query, place) => ({ token: tokenOf(query, this.facts, this.model), colour: PIN_COLOURS[place] }));
  }

  /** What can be asked about and is no patch, as chips, each with what it has of the shown map. */
  showChips(query, values) {
    const { facts, model } = this, chips = this.find("chips");
    const queries = [...(model.pools_by_attention && !OFFLINE ? [null] : []), ...facts.prefix, ...(this.hasToken && !OFFLINE ? ["patches"] : [])];
    const folded = !this.unfolded && queries.length > MAX_CHIPS + 1;
    const visible = folded ? [...queries.slice(0, MAX_CHIPS - 1), queries.at(-1)] : queries;
    if (folded && typeof query === "string" && !visible.includes(query)) visible.splice(-1, 0, query);
    const names = JSON.stringify([visible, folded, this.hasToken]), first = tokenOf(null, facts, model);
    const standard = first !== null ? queryOf(first, facts) : model.pools_by_attention ? null : "patches";
    if (chips.dataset.names !== names) {
      chips.dataset.names = names;
      chips.replaceChildren(...visible.map((each) => this.chip(each)), ...(folded ? [this.moreChips(queries.length - visible.length)] : []));
    }
    visible.forEach((each, place) => {
      const chip = chips.children[place], token = facts.prefix.indexOf(each), value = token < 0 ? NaN : values?.[token];
      chip.lastElementChild.textContent = value === undefined ? (this.packs.failure ? "" : "…") : Number.isNaN(value) ? "" : digits(value);
      const pin = this.view.pins.findIndex((pinned) => same(pinned, each));
      chip.style.borderColor = pin < 0 ? "" : PIN_COLOURS[pin];
      chip.setAttribute("aria-pressed", same(each, query ?? standard) && this.hasToken);
    });
  }

  chip(query) {
    const chip = createButton({ className: "vx-chip", disabled: !this.hasToken }, create("b", { textContent: nameOf(query) }), create("span"));
    chip.title = query === "cls" ? "The class token, from which a model of this kind reads the class"
      : query === "patches" ? "The mean of what all patches attend to"
        : query === null ? "The learned query that reads the picture after the last layer"
          : "A token that stands for no part of the picture (Darcet et al. 2024)";
    const token = this.facts.prefix.indexOf(query);
    chip.onclick = (event) => (event.shiftKey && token >= 0 ? this.hooks.pin(this, token) : this.hooks.choose(this, query));
    if (token >= 0) {
      chip.onpointerenter = (event) => event.pointerType !== "touch" && this.hooks.hover(this, token, event);
      chip.onpointerleave = () => this.hooks.hover(this, null);
    }
    return chip;
  }

  moreChips(count) {
    const unfold = () => {
      this.unfolded = true;
      this.hooks.changed(this, null);
    };
    return createButton({ className: "vx-chip", textContent: `${count} more`, onclick: unfold });
  }

  /** @param values that the scale is about: an end that some of them lie beyond is marked */
  showLegend(scale, values, table, quantity) {
    this.find("legend").hidden = !scale;
    if (!scale) return;
    const [below, above] = scale.beyond(values), { title } = SCALES[scale.name];
    [this.find("low").textContent, this.find("high").textContent] = scale.ends.map(digits);
    for (const [name, count, side] of [["below", below, "below"], ["above", above, "above"]]) {
      this.find(name).hidden = count === 0;
      this.find(name).title = `${count} of ${values.length} patches ${count === 1 ? "lies" : "lie"} ${side} the scale`;
    }
    this.find("ramp").style.background = gradient(table);
    this.find("quantity").textContent = quantity;
    this.find("scale-name").textContent = scale.name === "linear" ? "" : `${title.toLowerCase()} scale`;
  }

  /** The legend in words: its lower end, its upper end, and what lies between them. */
  legendTexts() {
    const [low, high, quantity, scale] = ["low", "high", "quantity", "scale-name"].map((name) => this.find(name).textContent);
    const [below, above] = ["below", "above"].map((name) => !this.find(name).hidden);
    return [below ? `◄ ${low}` : low, above ? `${high} ►` : high, [quantity, scale].filter(Boolean).join(", ")];
  }

  say(text) {
    if (this.find("status").textContent !== text) this.find("status").textContent = text;
  }

  /** What a map shows, in words. */
  sentence(query, values) {
    const { title, interpretation } = METHODS[this.view.method];
    if (!values) return `${title}: being fetched …`;
    const { description } = this.about(query), best = this.attention.strongest(this.drawn(query, values));
    const said = description ?? this.liveSentence(query), patches = values.subarray(this.attention.prefix);
    // Patches that are in or out have no strongest.
    const strongest = patches.every((value) => value === 0 || value === 1)
      ? `${patches.reduce((sum, value) => sum + value)} of ${patches.length} patches`
      : `Strongest: ${nameOf(queryOf(best, this.facts))} with ${digits(values[best])}`;
    return `${said}. ${strongest}. ${interpretation}`;
  }

  liveSentence(query) {
    const { layers, heads } = this.facts, place = placeOf(this.view, this.facts);
    const name = longNameOf(query ?? queryOf(tokenOf(query, this.facts, this.model), this.facts));
    if (this.view.method === "rollout") {
      const left = this.itself(query) === undefined ? "" : `; ${name} itself, where this map begins, is left out of the colours`;
      return `Attention rollout for ${name}: mean of ${heads} heads, residual 0.5, ${layers > 1 ? `layers 0 to ${layers - 1}` : "layer 0"}${left}`;
    }
    const isColumn = valueOf(this.view, "direction", this.facts) === "column";
    return `${isColumn ? `Attention each patch pays to ${name}` : `Attention from ${name} to each patch`}, ${place}`;
  }

  tokenAt(event) {
    if (!this.painter) return null;
    const edges = this.find("canvas").getBoundingClientRect();
    const across = (event.clientX - edges.left) / edges.width, down = (event.clientY - edges.top) / edges.height;
    const cell = this.painter.cellAt(across, down);
    return cell && this.attention.token(...cell);
  }

  /** Another pane's query here: of the same name, or at the same place of the picture; undefined where there is none. */
  linked(pane, query) {
    if (pane === this || !Array.isArray(query)) return query === "patches" || this.facts.prefix.includes(query) || pane === this ? query : undefined;
    const cell = this.painter?.cellAt(...pane.painter.centre(query));
    return cell ?? undefined;
  }
}
