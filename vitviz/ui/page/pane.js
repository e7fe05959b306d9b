// One map of one analysis: its picture, the caption below it, and its prefix tokens above it.

import { wholeName } from "./answer.js";
import { Attention } from "./attention.js";
import { fitCanvas, Painter } from "./canvas.js";
import { labelOf } from "./class_names.js";
import { contextOf, find, root, setText } from "./dom.js";
import { listenToPicture } from "./gestures.js";
import { showLegend } from "./legend.js";
import { mapSource } from "./map_sources.js";
import { range } from "./numbers.js";
import { Packs } from "./packs.js";
import { isAlike, page, requestDraw, store } from "./page.js";
import { PIN_COLOURS } from "./pins.js";
import { withoutNaN } from "./scales.js";
import { backend, METHODS } from "./settings.js";
import { analysisKey, isEqual } from "./store.js";
import { nameOf, queryOf } from "./token_names.js";
import { classOf, hasParameter, isFarLook, isLooking, tokenOf, valueOf } from "./tokens.js";

// A map that only the server computes is requested once the pointer rests on its patch for this long.
const REST_MS = 150;
// Of the legend and the tokens along the lower edge of the stage, in pixels of the page.
const FOOT_PIXELS = 54;
// For as long, covers that the page finds wipe in.
export const COVER_MS = 700;
// Of the squares that the line below the layers would cover, while somebody points at it.
const NAMED_OPACITY = 0.6;
/**
 * A map without one token, such as a patch whose identity term is far above all other values and says nothing.
 * @param {Float32Array} values
 * @param {number | undefined} omitted
 */
export const withoutToken = (values, omitted) =>
  omitted === undefined ? values : values.map((value, token) => (token === omitted ? NaN : value));

/**
 * A picture, decoded. Of an image of the document, browsers keep what they have decoded for long after it is gone.
 * @param {string} address
 */
async function bitmapOf(address) {
  const image = new Image();
  image.src = address;
  await new Promise((done, fail) => Object.assign(image, { onload: done, onerror: fail }));
  return createImageBitmap(image);
}

/** The file with the features that are compared. */
export const nameOfFeatures = (layer = store.state.alike_layer) => (layer === null ? "features" : `features ${layer}`);

/**
 * The layer whose features are compared; undefined until the one that the server chooses is there.
 * @param {Pane} pane
 */
export function layerOfFeatures({ packs }) {
  const { metadata: { layer } = /** @type {Record<string, string>} */ ({}) } = packs?.get(nameOfFeatures()) ?? {};
  return store.state.alike_layer ?? (layer === undefined ? undefined : Number(layer));
}

export class Pane {
  /**
   * @param {HTMLElement} element of class vx-pane
   * @param {number} index
   * @param {Record<string, any>} hooks hover(pane, token, event), activate(pane), choose(pane, query), pin(pane, token),
   *   onChange(pane, error), fetchFile(pane, facts, file, onUnfinished), hide(pane, cell, isOff), isHiding(), isHidden(cell),
   *   onRequest(pane, names), onLoad(pane), isOpening(): while a link is opened, nothing is requested
   */
  constructor(element, index, hooks) {
    this.element = element;
    this.index = index;
    this.hooks = hooks;
    // Null, whatever their types say, until an analysis is loaded; the painter, until its picture is.
    const none = /** @type {any} */ (null);
    /** @type {Facts} */
    this.facts = none;
    /** @type {Model} */
    this.model = none;
    /** @type {Packs} */
    this.packs = none;
    /** @type {Attention} */
    this.attention = none;
    /** @type {Painter} */
    this.painter = none;
    /** @type {View} */
    this.view = none;
    // The state of the page while it last showed this view, and what the visitor had asked of each.
    /** @type {{ state: State, questions: Record<string, any>[] }} */
    this.previous = none;
    /** @type {Drawing} */
    this.drawing = none;
    // Of the analysis that is shown, of the one that is requested, and of a picture that is shown alone, without its model.
    this.key = this.alone = "";
    /** @type {string | null} */
    this.pendingKey = null;
    /** @type {number[]} */
    this.renewals = [];
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.restTimer = undefined;
    /** @type {Query} */
    this.restQuery = null;
    listenToPicture(this);
  }

  /**
   * @param {string} name
   * @returns {any}
   */
  find(name) {
    return this.element.querySelector(`.vx-${name}`);
  }

  /**
   * Show another analysis: `facts` and `model` as in facts.py.
   * @param {Facts} facts
   * @param {Model} model
   * @param {View} view
   */
  async load(facts, model, view) {
    this.hooks.onLoad(this);
    this.close();
    Object.assign(this, { facts, model, view, key: analysisKey(view), alone: "" });
    const fetchFile = (/** @type {any[]} */ ...request) => this.hooks.fetchFile(this, facts, ...request);
    this.packs = new Packs(fetchFile, (name, error) => this.facts === facts && this.hooks.onChange(this, error));
    this.attention = new Attention(facts, this.packs);
    this.requestFiles();
    const picture = await bitmapOf(backend.address(facts.picture)).catch(() => null);
    if (this.facts !== facts) return;
    if (!picture) return this.hooks.onChange(this, Object.assign(Error("The picture cannot be fetched"), { expired: true }));
    this.painter = new Painter(facts, picture);
    this.hooks.onChange(this, null);
  }

  /**
   * Show no map, since the model is missing, and say so; the picture follows.
   * @param {View} view
   * @param {string} text
   */
  showAlone(view, text) {
    this.close();
    Object.assign(this, { model: null, view, alone: analysisKey(view) });
    const canvas = this.find("canvas");
    canvas.width = canvas.width;
    this.setStatus(text);
  }

  /** @param {string} address */
  async drawAlone(address) {
    const key = this.alone, picture = await bitmapOf(address), canvas = this.find("canvas");
    if (this.alone !== key) return;
    fitCanvas(canvas, picture.height / picture.width);
    contextOf(canvas).drawImage(picture, 0, 0, canvas.width, canvas.height);
  }

  close() {
    this.packs?.close();
    clearTimeout(this.restTimer);
    Object.assign(this, { facts: null, packs: null, attention: null, painter: null, drawing: null, restQuery: null, key: "" });
    this.find("chips").replaceChildren();
    delete this.find("chips").dataset.names;
    showLegend(this, null, [], null, "");
    delete this.find("canvas").dataset.loaded;
  }

  /**
   * Show another map of the same analysis.
   * @param {View} view
   */
  setView(view) {
    this.view = view;
    this.requestFiles();
  }

  /** The default query that is not the model's: likeness to a patch starts from all patches. */
  get defaultQuery() {
    return this.hasToken && this.view.parameters.target?.patch ? "patches" : undefined;
  }

  /** The query of the view. */
  get query() {
    return this.view.parameters.query ?? this.defaultQuery;
  }

  /** The token of the view; null for a query that is no single token. */
  get token() {
    return tokenOf(this.query, this.facts, this.model);
  }

  /** Whether the map starts from a token. */
  get hasToken() {
    return hasParameter(this.view.method, "query");
  }

  /** Request the files of the view, its maps first, then the nearest layers. */
  requestFiles() {
    if (!this.packs || this.hooks.isOpening()) return;
    const isCompared = isAlike(), number = isCompared ? layerOfFeatures(this) : valueOf(this.view, "layer", this.facts);
    const layer = number ?? this.facts.layers - 1;
    const distance = (/** @type {any} */ number) => Math.abs(number - layer);
    const nearest = range(this.facts.layers).sort((a, b) => distance(a) - distance(b));
    const features = [nameOfFeatures(), ...(backend.computes ? nearest.map((number) => nameOfFeatures(number)) : [])];
    const queries = [this.query, ...(this.restQuery === null ? [] : [this.restQuery]), ...(this.hasToken ? this.view.pins : [])];
    const maps = queries.flatMap((query) => this.sourceOf(query).file ?? []);
    // Until somebody touches the page, a far look needs the one layer that it shows large.
    const isEnough = !page.isTouched && Boolean(this.facts.look?.rows) && isFarLook(this.view, this.facts);
    const files = isCompared ? features.map((name) => ({ name }))
      : [...maps, ...nearest.slice(0, isEnough ? 1 : undefined).map((number) => ({ name: `layer ${number}` }))];
    this.hooks.onRequest(this, files.map(({ name }) => name));
    this.packs.request(files);
  }

  /**
   * Where the map of a query comes from.
   * @param {Query} query
   */
  sourceOf(query) {
    const token = tokenOf(query, this.facts, this.model);
    const own = this.hasToken ? query ?? this.defaultQuery : this.view.parameters.query;
    return mapSource(this.view, own, token, this.facts);
  }

  /**
   * The map of a query: "token"; null until it is loaded.
   * @param {Query} query
   */
  values(query) {
    const source = this.sourceOf(query), token = /** @type {number} */ (tokenOf(query, this.facts, this.model));
    if (source.kind === "map") return this.packs.get(source.file.name)?.values ?? null;
    if (source.kind === "rollout") return this.attention.rollout(token);
    const [layer, head, direction] = ["layer", "head", "direction"].map((name) => valueOf(this.view, name, this.facts));
    return this.attention.map(layer, head, token, direction);
  }

  /**
   * The metadata of a map's file: description, quantity, signed, self.
   * @param {Query} query
   */
  metadata(query) {
    const { file } = this.sourceOf(query);
    return (file && this.packs.get(file.name)?.metadata) || {};
  }

  /**
   * The query's patch, if its value contains an identity term; otherwise undefined.
   * @param {Query} query
   * @returns {number | undefined}
   */
  identityToken(query) {
    const { self: identity } = this.metadata(query);
    if (identity !== undefined) return Number(identity);
    const asking = query ?? this.defaultQuery;
    return METHODS[this.view.method].begins_with_identity && Array.isArray(asking)
      ? (tokenOf(asking, this.facts, this.model) ?? undefined)
      : undefined;
  }

  /**
   * The drawn values of a map: all but that of the patch with an identity term.
   * @param {Query} query
   * @param {any} values
   */
  withoutIdentity(query, values) {
    return values && withoutToken(values, this.identityToken(query));
  }

  /**
   * The values of patches to which a scale is fitted.
   * @param {any} values
   */
  scaleValues(values) {
    return values && withoutNaN(values.subarray(this.attention.prefix));
  }

  /**
   * Whether zero is in the middle of the colours.
   * @param {Query} query
   */
  isSigned(query) {
    return this.metadata(query).signed === "true";
  }

  /**
   * Request the map of the query under the pointer, once the pointer rests there.
   * @param {Query} query
   */
  fetchAtRest(query) {
    clearTimeout(this.restTimer);
    if (isEqual(this.restQuery, query)) return;
    if (query === null || !backend.computes || this.sourceOf(query).kind === "live" || this.values(query)) {
      this.restQuery = query === null ? null : this.restQuery;
      return;
    }
    this.restTimer = setTimeout(() => {
      this.restQuery = query;
      this.requestFiles();
    }, REST_MS);
  }

  /**
   * Draw values on a scale.
   * @param {Query} query
   * @param {Float32Array} values
   * @param {FittedScale} scale
   * @param {ColourTable} table
   * @param {Look} look
   * @param {any} marks
   */
  show(query, values, scale, table, look, marks) {
    const canvas = this.find("canvas"), patches = values?.subarray(this.attention.prefix);
    // Nothing asks where squares are hidden.
    const queryMarks = this.hasToken && !look.isBare ? [{ token: tokenOf(query, this.facts, this.model), colour: "white" }] : [];
    const strongest = values && /** @type {Cell} */ (queryOf(this.attention.strongest(values), this.facts));
    const arc = strongest && !look.isBare && isLooking(this, query) ? /** @type {[Cell, Cell]} */ ([query, strongest]) : null,
      isPointed = this.index === page.active && find("unless").matches(":enabled:is(:hover, :focus-visible)"),
      named = (isPointed && this.facts.flip?.patches) || [];
    this.present({ patches, scale, table, look, marks: [...marks, ...queryMarks], arc, named }, Boolean(values));
    // What asks and what is looked at is seen through the legend, which fades where the pointer asks below it.
    const foot = canvas.height - FOOT_PIXELS * canvas.width / (canvas.clientWidth || 1), { hovered } = page;
    const isLow = (/** @type {any} */ cell) => {
      const [, top, , height] = Array.isArray(cell) ? this.painter.patchRectangle(cell, canvas.width, canvas.height) : [0, 0, 0, 0];
      return top + height > foot;
    };
    this.element.classList.toggle("vx-seen-through", [query, strongest].some(isLow));
    this.element.classList.toggle("vx-faint", isLow(hovered?.pane === this ? hovered.query : null));
  }

  /**
   * Put a drawing on the stage.
   * @param {Drawing} drawing
   * @param {boolean} isLoaded whether it is all there
   */
  present(drawing, isLoaded) {
    const canvas = this.find("canvas");
    this.drawing = drawing;
    fitCanvas(canvas, this.painter.ratio);
    // On a phone, the layers stay below the stage.
    if (this.index === 0) root.style.setProperty("--vx-picture-height", canvas.parentElement?.style.height ?? "");
    this.drawOn(canvas, this.painter, drawing.look);
    canvas.dataset.loaded = isLoaded ? this.facts.uid : "";
  }

  /**
   * Draw the same on a canvas of any size, with a painter of the same picture.
   * @param {HTMLCanvasElement} canvas
   * @param {any} painter
   * @param {Look} look
   */
  drawOn(canvas, painter, look) {
    const { patches, scale, table, marks, arc, named } = this.drawing;
    painter.paint(canvas, patches, scale, table, look);
    for (const { token, colour, isDashed } of marks) {
      if (token === null || token < this.attention.prefix) continue;
      painter.mark(canvas, this.attention.cell(token), colour, Math.max(1, canvas.width / 300), isDashed);
    }
    if (arc) {
      const context = contextOf(canvas), [from, middle, to] = painter.arc(...arc, canvas.width, canvas.height);
      Object.assign(context, { strokeStyle: "white", lineWidth: Math.max(1, canvas.width / 400) }).beginPath();
      context.moveTo(from[0], from[1]);
      context.quadraticCurveTo(middle[0], middle[1], to[0], to[1]);
      context.stroke();
    }
    const covers = this.view.patches_off, share = Math.min(1, (performance.now() - page.coverTime) / COVER_MS);
    for (const cell of covers.slice(0, Math.ceil(share * covers.length))) painter.cross(canvas, cell);
    if (named.length) contextOf(canvas).globalAlpha = NAMED_OPACITY;
    for (const cell of named) painter.cross(canvas, cell);
    if (share < 1) requestDraw();
  }

  /** Token and colour of each pin. */
  get marks() {
    if (!this.hasToken) return [];
    return this.view.pins.map((query, index) => ({ token: tokenOf(query, this.facts, this.model), colour: PIN_COLOURS[index] }));
  }

  /** What the map is of: model, layer or method, head or class, and picture. */
  showBadge() {
    const { unfinished = "" } = this.metadata(this.query), { facts, model, view } = this;
    const layer = valueOf(view, "layer", facts), head = valueOf(view, "head", facts), about = classOf(view, facts);
    const parts = [
      wholeName(view),
      unfinished && `unfinished, ${unfinished}`,
      model.title,
      view.method === "attention" ? "" : METHODS[view.method].title,
      layer === undefined ? "" : `layer ${layer}`,
      head === undefined ? "" : typeof head === "number" ? `head ${head}` : `${head} of heads`,
      about === undefined ? "" : labelOf(model, about),
      facts.name,
    ];
    setText(this.find("badge"), parts.filter(Boolean).join(" · "));
    // What must be known of a map is in sight; the rest is, beside its options.
    this.element.classList.toggle("vx-noted", Boolean(parts[0] || unfinished));
    this.find("badge").title = this.find("badge").textContent;
  }

  /**
   * @param {string} text
   * @param {Query=} query of the map
   */
  setStatus(text, query = this.view && this.query) {
    setText(this.find("status"), text);
    // What a screen reader reads with every arrow key: the token that asks, and the strongest patch.
    const [strongest] = /Strongest: .* with [^ ]*/.exec(text) ?? [text];
    const token = this.hasToken && this.facts ? tokenOf(query, this.facts, this.model) : null;
    setText(this.find("live"), `${token === null ? "" : `${nameOf(queryOf(token, this.facts))}. `}${strongest}`);
  }

  /** @param {any} event */
  tokenAt(event) {
    if (!this.painter) return null;
    const edges = this.find("canvas").getBoundingClientRect();
    const across = (event.clientX - edges.left) / edges.width, down = (event.clientY - edges.top) / edges.height;
    const cell = this.painter.cellAt(across, down);
    return cell && this.attention.token(...cell);
  }

  /**
   * The query here that corresponds to another pane's: by name, or by place in the picture; undefined if there is none.
   * @param {Pane} pane
   * @param {Query} query
   */
  counterpart(pane, query) {
    if (pane === this || !Array.isArray(query))
      return query === "patches" || this.facts.prefix.includes(String(query)) || pane === this ? query : undefined;
    const cell = this.painter?.cellAt(...pane.painter.centre(/** @type {Cell} */ (query)));
    return cell ?? undefined;
  }
}
