// One map of one analysis: its picture, what is said below it, and its prefix tokens above it.

const QUANTITIES = { row: "attention weight", column: "attention weight", rollout: "share of the rollout" };
const VERBS = { row: "looks at", column: "is looked at by", rollout: "is made of" };

class Pane {
  /**
   * @param element of class vx-pane
   * @param hooks hover(pane, token, event), pick(pane, token), key(event), changed(pane, error)
   */
  constructor(element, hooks) {
    this.element = element;
    this.hooks = hooks;
    this.choice = { layer: Infinity, head: "mean", direction: "row" };
    this.facts = this.packs = this.attention = this.painter = this.shown = null;
    const canvas = this.find("canvas");
    canvas.onpointermove = (event) => hooks.hover(this, this.tokenAt(event), event);
    canvas.onpointerdown = (event) => event.pointerType === "touch" && hooks.hover(this, this.tokenAt(event), event);
    canvas.onpointerleave = () => hooks.hover(this, null);
    canvas.onclick = (event) => {
      canvas.focus({ preventScroll: true });
      hooks.pick(this, this.tokenAt(event));
    };
    canvas.onkeydown = hooks.key;
  }

  find(name) {
    return this.element.querySelector(`.vx-${name}`);
  }

  /** Take over an analysis, `facts` of component.py; `fetchFile` brings its files. */
  async load(facts, fetchFile) {
    this.close();
    this.facts = facts;
    this.packs = new Packs(fetchFile, (name, error) => this.facts === facts && this.hooks.changed(this, error));
    this.attention = new Attention(facts, this.packs);
    this.choice.layer = Math.min(this.choice.layer, facts.layers - 1);
    if (typeof this.choice.head === "number" && this.choice.head >= facts.heads) this.choice.head = "mean";
    if (!offers(facts, this.choice.direction)) this.choice.direction = "row";
    this.want();
    const picture = new Image();
    picture.src = facts.picture.url;
    try {
      await picture.decode();
    } catch (error) {
      return this.facts === facts && this.hooks.changed(this, error);
    }
    if (this.facts !== facts) return;
    this.painter = new Painter(facts, picture);
    this.hooks.changed(this, null);
  }

  close() {
    this.packs?.close();
    this.facts = this.packs = this.attention = this.painter = this.shown = null;
    this.find("chips").replaceChildren();
    this.showLegend(null);
    delete this.find("canvas").dataset.loaded;
  }

  /** Ask for the files that are needed, the nearest layers first. */
  want() {
    if (!this.packs) return;
    const distance = (layer) => Math.abs(layer - this.choice.layer);
    const near = [...Array(this.facts.layers).keys()].sort((one, other) => distance(one) - distance(other));
    const names = near.map((layer) => `layer ${layer}`);
    this.packs.want(LIVE.includes(this.choice.direction) ? names : [this.choice.direction, ...names]);
  }

  /** The shown map of a token: "token"; null while it is not there. */
  values(token) {
    const { layer, head, direction } = this.choice;
    return token === null ? null : this.attention.map(layer, head, token, direction);
  }

  /** Draw a map, or one that was made of several: `range` has the ends of its colours. */
  show(token, values, range, table, look, marks) {
    const canvas = this.find("canvas"), patches = values?.subarray(this.attention.prefix);
    this.shown = { patches, range: range ?? [0, 1], table, look, marks: [...marks, { token, colour: "white" }] };
    fitted(canvas, this.painter.ratio);
    this.drawOn(canvas, this.painter, look);
    if (this.packs.held.size >= this.facts.layers) canvas.dataset.loaded = this.facts.uid;
  }

  /** What is shown on a canvas of any size, by a painter of the same picture. */
  drawOn(canvas, painter, look) {
    const { patches, range, table, marks } = this.shown;
    painter.paint(canvas, patches, range, table, look);
    for (const { token, colour } of marks) {
      if (token === null || token < this.attention.prefix) continue;
      painter.mark(canvas, this.attention.cell(token), colour, Math.max(1, canvas.width / 300));
    }
  }

  /** The prefix tokens as chips: hovered and pinned like patches, each with what it has of the shown map. */
  showChips(values, token, marks) {
    const chips = this.find("chips"), { attention } = this, { bound } = this.packs.get(this.choice.direction)?.about ?? {};
    // Of what has no bound, a percentage would say nothing.
    const said = bound === "inf" ? digits : share;
    while (chips.children.length < attention.prefix) chips.append(this.chip(chips.children.length));
    [...chips.children].forEach((chip, index) => {
      chip.firstElementChild.textContent = attention.name(index);
      chip.lastElementChild.textContent = values ? said(values[index]) : "…";
      chip.style.borderColor = marks.find((mark) => mark.token === index)?.colour ?? "";
      chip.setAttribute("aria-pressed", marks.some((mark) => mark.token === index));
      chip.classList.toggle("vx-shown", index === token);
    });
  }

  chip(index) {
    const chip = document.createElement("button");
    Object.assign(chip, { type: "button", className: "vx-chip", onclick: () => this.hooks.pick(this, index) });
    chip.append(document.createElement("b"), document.createElement("span"));
    chip.onpointerenter = (event) => event.pointerType !== "touch" && this.hooks.hover(this, index, event);
    chip.onpointerleave = () => this.hooks.hover(this, null);
    chip.onfocus = () => this.hooks.hover(this, index);
    chip.onblur = () => this.hooks.hover(this, null);
    return chip;
  }

  showLegend(range, table, quantity) {
    this.find("legend").hidden = !range;
    if (!range) return;
    [this.find("low").textContent, this.find("high").textContent] = range.map(digits);
    this.find("ramp").style.background = gradient(table);
    this.find("quantity").textContent = quantity;
  }

  say(text) {
    if (this.find("status").textContent !== text) this.find("status").textContent = text;
  }

  /** What a map shows, in words. */
  sentence(token, values) {
    if (token === null) return "This picture has no such token.";
    const { layer, head, direction } = this.choice, { layers, heads } = this.facts;
    const which = typeof head === "number" ? `head ${head}` : `${head} of ${heads} heads`;
    const where = direction === "rollout" ? `rollout through ${layers} layers` : `layer ${layer}, ${which}`;
    const verb = VERBS[direction], { description } = this.packs.get(direction)?.about ?? {};
    if (values && description) {
      const best = this.attention.strongest(values);
      return `${description}. Strongest: ${this.attention.name(best)} with ${digits(values[best])}.`;
    }
    if (!verb) return `${titleOf(this.facts, direction)} is being computed …`;
    if (!values) return `${this.attention.name(token)}: ${where} is being fetched …`;
    const best = this.attention.strongest(values);
    return `${this.attention.name(token)} ${verb}: ${where}. Strongest: ${this.attention.name(best)} with ${digits(values[best])}.`;
  }

  tokenAt(event) {
    if (!this.painter) return null;
    const edges = this.find("canvas").getBoundingClientRect();
    const across = (event.clientX - edges.left) / edges.width, down = (event.clientY - edges.top) / edges.height;
    const cell = this.painter.cellAt(across, down);
    return cell && this.attention.token(...cell);
  }

  /** Another pane's token here: of the same name, or at the same place of the picture; null where there is none. */
  linked(pane, token) {
    if (pane === this || token === null) return token;
    if (token < pane.attention.prefix) {
      const index = this.facts.prefix.indexOf(pane.facts.prefix[token]);
      return index < 0 ? null : index;
    }
    const cell = this.painter?.cellAt(...pane.painter.centre(pane.attention.cell(token)));
    return cell ? this.attention.token(...cell) : null;
  }
}

/** The map of a method that the server computes. */
function titleOf(facts, direction) {
  return facts.methods.find(({ name }) => `map ${name}` === direction)?.title;
}

/** Whether an analysis has maps of this direction. */
function offers(facts, direction) {
  return LIVE.includes(direction) || (direction === "rollout" ? facts.rolls : Boolean(titleOf(facts, direction)));
}

/** Of a map that says nothing of a token, NaN. */
function share(value) {
  return Number.isNaN(value) ? "–" : `${(100 * value).toFixed(1)}%`;
}

/** A number to three significant digits. */
function digits(value) {
  if (Number.isNaN(value)) return "–";
  return Number(value.toPrecision(3)).toString();
}
