// Drawing the state: panes, legends, pins, sheet and strip.

import { OUTLIER_COLOUR } from "./canvas.js";
import { namesOfHidden, showLead, wholeName } from "./answer.js";
import { drawAlike } from "./alike.js";
import { showChips } from "./chips.js";
import { captionOf } from "./captions.js";
import { keepScaleFor, unpinToken } from "./choices.js";
import { colours, differenceColours } from "./colour_tables.js";
import { hasOwnScales } from "./compare.js";
import { find, findAll, setText } from "./dom.js";
import { showLegend } from "./legend.js";
import { ATTENTION, attentionScale, fittedScale, isHeld, isHeldFor, lookOf, quantityOf, smallLook } from "./look.js";
import { reasonOf, setState } from "./messages.js";
import { clamped, differenceOfMaps, digits, percent } from "./numbers.js";
import { activePane, isAlike, isDouble, isHiding, page, panes, shownPanes, store, timings } from "./page.js";
import { showPins } from "./pins.js";
import { playOpening } from "./motion.js";
import { METHODS, SCALES } from "./settings.js";
import { isEqual } from "./store.js";
import { Sheet, SHEET_RATIOS } from "./sheet.js";
import { showStrip } from "./strip.js";
import { nameOf, queryOf } from "./token_names.js";
import { isFarLook, isLooking, tokenOf, valueOf } from "./tokens.js";
import { wordsOfFinger } from "./touches.js";
import { controls, panels, probes } from "./widgets.js";

const OWN_SCALES = "Each has its own scale.", HELD_SCALE = "All are on the scale that is held.";
// Heads that are named for what they attend to.
const POINTED = "The square you point at asks; bright squares are where it looks.";
const NAMED_HEADS = 3;
const HIDING_HINT = "Click a head to switch it off, a layer’s first cell for all of its heads.";

/**
 * Whether the square under the pointer asks. A map about a class is read as it is: there, its value is said.
 * @param {Pane} pane
 */
const isAsking = ({ hasToken, view }) => hasToken && METHODS[view.method].group !== "target" && !isHiding();

/**
 * The query that a pane shows: that under the pointer, or that of its view.
 * @param {Pane} pane
 */
function queryOfPane(pane) {
  const { query } = pane;
  if (!page.hovered || !isAsking(pane)) return query;
  const counterpart = pane.counterpart(page.hovered.pane, page.hovered.query);
  return counterpart === undefined ? query : counterpart;
}

/**
 * The view of the cell of the sheet under the pointer, which is shown large; null if its layer is not loaded, or no token asks.
 * @param {Pane} pane
 * @returns {View | null}
 */
function previewOf({ view, facts, model, packs, query: asking }) {
  if (!page.hoveredCell || !packs.get(`layer ${page.hoveredCell.layer}`) || tokenOf(asking, facts, model) === null) return null;
  const { query } = view.parameters, direction = valueOf(view, "direction", facts);
  const parameters = { ...page.hoveredCell, ...(query !== undefined && { query }), ...(direction !== undefined && { direction }) };
  return { ...view, method: "attention", parameters };
}

/** Draw the state, with the cell of the sheet under the pointer in place of the active map. */
export function draw() {
  const pane = activePane(), { view } = pane, preview = pane.painter && previewOf(pane), [first] = panes;
  if (isHeld() && !preview && first.painter && first.values(first.query)) keepScaleFor(quantityOf({ pane: first, query: first.query }));
  // For the time of drawing, so that values, caption, legend and badge are of one map.
  if (preview) pane.view = preview;
  try {
    drawViews();
  } finally {
    if (preview) pane.view = view;
  }
}

function drawViews() {
  const visible = shownPanes().filter(({ alone }) => !alone);
  if (!visible.length || visible.some((pane) => !pane.painter)) return;
  if (isAlike()) return drawAlike(visible);
  /** @type {any[]} */
  const maps = visible.map((pane) => {
    const query = queryOfPane(pane);
    pane.fetchAtRest(page.hovered ? query : null);
    const values = pane.values(query) ?? (page.hovered ? pane.values(pane.query) : null);
    const shownQuery = pane.values(query) ? query : pane.query;
    const visibleValues = pane.withoutIdentity(shownQuery, values);
    return {
      pane,
      query: values ? shownQuery : query,
      values,
      drawn: visibleValues,
      scaled: pane.scaleValues(visibleValues),
      signed: pane.isSigned(shownQuery),
    };
  });
  // Two maps of the same quantity share a scale, unless each is to have its own.
  const isKnown = maps.every(({ scaled }) => scaled);
  const isShared = maps.length > 1 && !hasOwnScales() && isKnown && quantityOf(maps[0]) === quantityOf(maps[1]);
  for (const group of isShared ? [maps] : maps.map((map) => [map])) {
    const scale = scaleOf(group);
    for (const map of group) showMap({ ...Object.assign(map, { scale }), sharing: !isDouble() ? "" : isShared ? ", shared" : ", its own" });
  }
  if (maps.length > 1 && store.state.layout === "difference") showDifference(maps[0], maps[1]);
  const failures = visible.map(({ packs }) => packs.failure).filter(Boolean);
  setState(failures.length ? "failed" : "ready", failures.some((failure) => !failure?.final));
  if (page.moveTime) timings.hovers.push(performance.now() - page.moveTime);
  page.moveTime = 0;
  if (activePane().alone) return;
  const map = maps.find(({ pane }) => pane.index === page.active) ?? maps[0];
  controls.showScale(store.state, map.scale, quantityOf(map));
  showPins(
    find("pins"),
    map.pane.hasToken ? map.pane.view.pins : [],
    (/** @type {HTMLCanvasElement} */ canvas, /** @type {Query} */ query) => drawPin(canvas, map.pane, query, map.scale?.name),
    unpinToken,
  );
  if (!page.hovered && maps.length === 1 && maps[0].values && isFarLook(map.pane.view, map.pane.facts)) playOpening(map.pane);
  if (isFarLook(map.pane.view, map.pane.facts) && !isHiding())
    showLead(isLooking(map.pane, map.query) ? `${map.pane.facts.look?.sentence} Point anywhere to ask.` : POINTED);
  // Where squares are hidden, no square asks that nobody chose.
  const asking = isHiding() ? store.questions[page.active].query : map.query;
  const token = tokenOf(asking, map.pane.facts, map.pane.model) ?? map.pane.facts.start;
  for (const part of findAll(".vx-whole")) setText(part, wholeName(map.pane.view));
  showSheet(map.pane, token);
  showStrip(map.pane, valueOf(map.pane.view, "layer", map.pane.facts), (canvas, layer) => drawFrame(canvas, map.pane, layer, token));
  probes.draw();
}

/**
 * One scale for maps. A map under the pointer has the one that it would have if it were chosen.
 * @param {any[]} maps
 */
function scaleOf(maps) {
  if (!maps.every(({ scaled }) => scaled)) return null;
  const signed = maps.some((map) => map.signed), [{ pane, query }] = maps;
  // Of a far look, what is shown is the one place that gets most.
  const like = maps.length === 1 && isLooking(pane, query) ? "linear" : null;
  return fittedScale(maps.map(({ scaled }) => scaled), { signed, like, quantity: quantityOf(maps[0]) });
}

/** @param {any} options */
function showMap({ pane, query, values, drawn: visibleValues, scaled, scale, sharing }) {
  const table = colours[store.state.colormap];
  pane.show(query, visibleValues, scale, table, lookOf(), marksOf(pane));
  showChips(pane, query);
  pane.showBadge();
  const under =
    page.hovered && !isAsking(pane) && page.hovered.pane === pane && values
      ? tokenOf(page.hovered.query, pane.facts, pane.model)
      : null;
  const value = under === null ? "" : `, ${nameOf(page.hovered?.query)}: ${digits(values[under])}`;
  showLegend(pane, scale, scaled, table, `${quantityOf({ pane, query })}${value}`, sharing);
  // The sentence is about a place of several squares.
  pane.find("each").hidden = !isLooking(pane, query);
  const scaleCaption = scale?.caption(scaled, SCALES[scale.name]);
  const outliers = store.state.outliers ? pane.facts.outliers?.about : "";
  pane.setStatus(
    !values && pane.packs.failure
      ? reasonOf(pane.packs.failure)
      : [captionOf(pane, query, values), scaleCaption, outliers, namesOfHidden(pane.view) && WHOLE].filter(Boolean).join(" "),
    query,
  );
  pane.element.classList.toggle("vx-chosen-pane", isDouble() && pane.index === page.active);
}

/**
 * The outlined patches: outliers if the state shows them, and pins.
 * @param {Pane} pane
 */
function marksOf(pane) {
  const patches = store.state.outliers ? pane.facts.outliers?.patches ?? [] : [];
  return [...patches.map((cell) => ({ token: pane.attention.token(...cell), colour: OUTLIER_COLOUR, isDashed: true })), ...pane.marks];
}

// Of a patch, by which the edges of two maps at one place may differ: rounding. The library takes no more either.
const PLACE_TOLERANCE = 1e-3;
const WHOLE = "The map is of the whole picture, with nothing hidden.";
const SHOW_WHOLE = "Under Your picture, How the model sees it, choose squash for both: it shows all.";
const OTHER_PLACES = "A and B see different parts of their pictures: there is no difference patch by patch.";

/**
 * Whether the patches of two maps of one grid lie at the same places of their pictures.
 * @param {Painter} first
 * @param {Painter} second
 */
function isEqualPlace(first, second) {
  const edges = first.box(1, 1), { rows, columns } = first.facts;
  return second.box(1, 1).every((edge, side) => {
    const extent = side % 2 ? (edges[3] - edges[1]) / rows : (edges[2] - edges[0]) / columns;
    return Math.abs(edge - edges[side]) <= PLACE_TOLERANCE * extent;
  });
}

/**
 * Show where the first map has more (red) or less (blue) than the second, on the first one's picture.
 * @param {any} first
 * @param {any} second
 */
function showDifference(first, second) {
  const pane = /** @type {Pane} */ (page.difference), { facts, model, packs, attention, painter, view } = first.pane;
  const other = second.pane.facts;
  Object.assign(pane, { facts, model, packs, attention, painter, view });
  setText(pane.find("badge"), [store.state.views.map(wholeName).find(Boolean), "A − B"].filter(Boolean).join(" · "));
  const isOneGrid = facts.rows === other.rows && facts.columns === other.columns;
  const isOnePlace = isOneGrid && isEqualPlace(first.pane.painter, second.pane.painter);
  const values = isOnePlace && first.values && second.values && differenceOfMaps(first.drawn, second.drawn, facts.prefix, other.prefix);
  const patches = values ? pane.scaleValues(values) : null, scale = patches && fittedScale([patches], { signed: true });
  const areEqual = !patches?.some(Boolean);
  // Equal maps have the colour of zero, in the middle.
  pane.show(first.query, values || null, scale, differenceColours, lookOf(), marksOf(pane));
  showChips(pane, first.query);
  showLegend(pane, areEqual ? null : scale, patches, differenceColours, "A − B");
  if (!isOneGrid) return pane.setStatus("These two have different grids: there is no difference patch by patch.");
  if (!isOnePlace) return pane.setStatus(`${OTHER_PLACES} ${SHOW_WHOLE}`);
  if (!values || !scale) return pane.setStatus("A − B: being fetched …");
  if (areEqual) return pane.setStatus("A − B: they are equal.");
  const strongest = attention.strongest(values.map(Math.abs)), quantities = [first, second].map(quantityOf);
  pane.setStatus([
    `A − B, above 0 where A has more. Largest difference: ${nameOf(queryOf(strongest, facts))} with ${digits(values[strongest])}.`,
    quantities[0] === quantities[1] ? "" : `They are different quantities: ${quantities.join(", and ")}.`,
    scale.caption(patches, SCALES[scale.name]),
  ].filter(Boolean).join(" "));
}

/**
 * @param {HTMLCanvasElement} canvas
 * @param {Pane} pane
 * @param {Query} query
 * @param {ScaleName=} like the scale of the large map
 */
function drawPin(canvas, pane, query, like) {
  const visibleValues = pane.withoutIdentity(query, pane.values(query)), { colormap } = store.state;
  const options = { signed: pane.isSigned(query), like, quantity: quantityOf({ pane, query }) };
  pane.painter.draw(
    canvas,
    visibleValues?.subarray(pane.attention.prefix),
    visibleValues && fittedScale([pane.scaleValues(visibleValues)], options),
    colours[colormap],
    smallLook(),
  );
  if (Array.isArray(query)) pane.painter.mark(canvas, query, "white", 1.5);
}

/**
 * A token's map in a layer, with the view's head.
 * @param {HTMLCanvasElement} canvas
 * @param {Pane} pane
 * @param {number} layer
 * @param {number} token
 */
function drawFrame(canvas, { facts, view, attention, painter }, layer, token) {
  const direction = valueOf(view, "direction", facts) ?? "row", head = valueOf(view, "head", facts) ?? "mean";
  const patches = attention.map(layer, head, token, direction)?.subarray(attention.prefix) ?? null;
  painter.draw(canvas, patches, patches && attentionScale([patches]), colours[store.state.colormap], smallLook());
}

/**
 * @param {Pane} pane
 * @param {number} token
 */
function showSheet(pane, token) {
  const { facts, attention, view } = pane, [left, top, right, bottom] = facts.box;
  if (page.sheet?.attention !== attention) page.sheet = new Sheet(find("sheet"), attention);
  const head = valueOf(view, "head", facts);
  const marked = markedPatches(view, facts);
  page.sheet.show({
    token,
    marked,
    // By then, a model that is missing may have taken the analysis away.
    onDraw: () => pane.facts && showCell(pane, token, marked.length),
    layer: valueOf(view, "layer", facts),
    head,
    shared: store.state.shared_scale,
    fittedScale: attentionScale,
    colours: colours[store.state.colormap],
    direction: valueOf(view, "direction", facts) ?? "row",
    fusion: typeof head === "string" ? head : (page.sheet.request?.fusion ?? "mean"),
    loaded: [...pane.packs.loaded.keys()].filter((name) => name.startsWith("layer")).join(),
    ratio: clamped((bottom - top) / (right - left), SHEET_RATIOS[0], SHEET_RATIOS[1]),
    ink: getComputedStyle(pane.find("status")).color,
    off: view.heads_off,
    drops: effects(),
  });
  showCell(pane, token, marked.length);
}

/** What every head changes where it is switched off, while that is asked about. */
const effects = () => (isHiding() ? panels.ranking?.drops : null);

/**
 * The patches that are hidden or pinned.
 * @param {View} view
 * @param {Facts} facts
 */
const markedPatches = ({ patches_off, pins }, { columns }) =>
  [...new Set([...patches_off, ...pins].flatMap((query) => (Array.isArray(query) ? query[0] * columns + query[1] : [])))];

/**
 * Below the sheet: the cell under the pointer, or the heads that attend most to the marked patches, or what can be done.
 * @param {Pane} pane
 * @param {number} token
 * @param {number} count of marked patches
 */
function showCell(pane, token, count) {
  const hasFocus = document.activeElement === find("sheet"), { facts, view } = pane;
  const layer = valueOf(view, "layer", facts), head = valueOf(view, "head", facts);
  const cell = page.hoveredCell ?? (hasFocus && layer !== undefined && head !== undefined ? { layer, head } : null);
  const hint = isHiding() ? wordsOfFinger(HIDING_HINT) : isHeldFor(ATTENTION) ? HELD_SCALE : store.state.shared_scale ? "" : OWN_SCALES;
  const said = cell ? sentenceOfCell(pane, cell, token) : count && !effects() ? sentenceOfMarked(pane, token, count) : hint;
  // What was said before stays until the sheet is drawn: without a line there, all below it would jump.
  if (said || !count) setText(find("cell"), said);
}

/**
 * Where most of a token's attention lies on the marked patches, once the sheet is drawn.
 * @param {Pane} pane
 * @param {number} token
 * @param {number} count
 */
function sentenceOfMarked({ facts, view }, token, count) {
  const ranked = (page.sheet?.shares ?? [])
    .flatMap((row, layer) => (row ?? []).map((share, head) => ({ share, text: `layer ${layer}, head ${head} (${percent(share)})` })))
    .sort((one, other) => other.share - one.share).slice(0, NAMED_HEADS);
  const squares = `the ${count === 1 ? "marked square" : `${count} marked squares`}`, name = nameOf(queryOf(token, facts));
  const opening = valueOf(view, "direction", facts) === "column"
    ? `Attention to ${name} comes most from ${squares} in` : `Attention from ${name} lies most on ${squares} in`;
  const named = ranked.map(({ text }) => text).join("; "), even = percent(count / (facts.rows * facts.columns));
  return named && `${opening} ${named}. Orange bars show how much; evenly spread, it would be ${even}.`;
}

/**
 * @param {Pane} pane
 * @param {{ layer: number, head: Head }} cell
 * @param {number} token
 */
function sentenceOfCell({ attention, view, facts }, { layer, head }, token) {
  const name = typeof head === "number" ? `head ${head}` : `${head} of all heads`, isRow = valueOf(view, "direction", facts) !== "column";
  const values = attention.map(layer, head, token, isRow ? "row" : "column");
  if (!values) return `Layer ${layer} is being fetched …`;
  const maxEntropy = digits(Math.log(attention.tokens)), distance = attention.distance(values, token);
  const opening = isRow ? "mean distance" : "attended from a mean distance of";
  const distanceText = distance === null ? "" : `, ${opening} ${digits(distance)} patches`;
  // What a token gets from all others is no distribution, nor is a maximum of some.
  const hasEntropy = isRow && head !== "max" && head !== "min";
  const entropyText = hasEntropy ? `: entropy ${digits(attention.entropy(values))} of ${maxEntropy} nats` : "";
  const isOff = view.heads_off.some((pair) => isEqual(pair, [layer, head]));
  const change = typeof head === "number" && panels.changeWithout(layer, head);
  const share = typeof head === "number" && page.sheet?.shares?.[layer]?.[head];
  return [
    `Layer ${layer}, ${name}${isOff ? ", switched off" : ""}${entropyText}${distanceText}`,
    ...(change ? [`${change} without it`] : []),
    ...(typeof share === "number" ? [`${percent(share)} on the marked squares`] : []),
  ].join("; ") + ".";
}
