// What is alike in two pictures: the colours of one basis, and what is like the square under the pointer, in both.

import { showLead, wholeName } from "./answer.js";
import { choosePicture } from "./choices.js";
import { colours } from "./colour_tables.js";
import { contextOf, find, listenTo, root, setText } from "./dom.js";
import { showLegend } from "./legend.js";
import { basisOf, coloursOf, cosines, matchesOf } from "./likeness.js";
import { fittedScale, lookOf, smallLook } from "./look.js";
import { reasonOf, setState } from "./messages.js";
import { rasterOf } from "./mosaic.js";
import { digits, range, wholePercent } from "./numbers.js";
import { isAlike, isDouble, page, panes, requestDraw, store, timings } from "./page.js";
import { layerOfFeatures, nameOfFeatures } from "./pane.js";
import { SETTINGS } from "./settings.js";
import { showStrip } from "./strip.js";

// Squares so close to the asking one share much of what they show. More lines are a thicket.
const QUANTITY = "cosine", NEAR = 1, OWN_PICTURE = "own", MOST_LINES = 24, PART_MS = 8;
export const SAME_COLOUR = "Same colour: alike to the network; which colour means nothing. Point at a square to light what is like it.";
const NO_LINE = " No line: the two are not each other's best match.";

/** @typedef {Awaited<ReturnType<typeof matchesOf>>} Matches */
/**
 * The colours of pictures in one basis, by their files of features; `share` of the variance is in three colours.
 * @typedef {{ packs: Tensors[], squares: import("./likeness.js").Squares[], rasters: HTMLCanvasElement[], share: number,
 *   matching?: Promise<void>, matches?: Matches }} Colouring
 */
/** @type {WeakMap<Tensors, Colouring>} */
const colourings = new WeakMap();
// Only one at a time is computed, in parts between which the page answers.
let isComputing = false, partStart = 0;

/** Wait for what the page has to do, once it has computed for a while. */
async function pause() {
  if (performance.now() - partStart < PART_MS) return;
  await new Promise((done) => setTimeout(done));
  partStart = performance.now();
}

/**
 * One file of each picture; null until all are there, of one model.
 * @param {Pane[]} visible
 * @param {string} name
 */
function packsOf(visible, name) {
  const packs = visible.map((pane) => /** @type {Tensors} */ (pane.packs.get(name))), [{ facts: first }] = visible;
  return packs.every(Boolean) && visible.every(({ facts: { model, step } }) => model === first.model && step === first.step) ? packs : null;
}

/**
 * The colours of the pictures by their files; null until they are computed, which does not begin while a pointer waits.
 * @param {Pane[]} visible
 * @param {Tensors[] | null} packs
 */
function colouringOf(visible, packs) {
  if (!packs) return null;
  const known = colourings.get(packs[0]);
  if (known?.packs.length === packs.length && known.packs.every((pack, index) => pack === packs[index])) return known;
  if (!isComputing && page.hovered === null) compute(packs, visible.map(({ facts }) => facts));
  return null;
}

/**
 * @param {Tensors[]} packs
 * @param {Facts[]} facts
 */
async function compute(packs, facts) {
  isComputing = true;
  const squares = packs.map(({ vectors }, index) => ({ vectors, inliers: inliersOf(facts[index]) })), basis = await basisOf(squares, pause);
  const rasters = packs.map(({ vectors }, index) => {
    const { rows, columns } = facts[index], levels = coloursOf(vectors, basis);
    return rasterOf(rows, columns, (/** @type {number} */ patch) => levels[patch].map((level) => Math.round(255 * level)));
  });
  colourings.set(packs[0], { packs, squares, rasters, share: basis.share });
  isComputing = false;
  requestDraw();
}

/**
 * The patches without outliers, which say little of their place.
 * @param {Facts} facts
 */
const inliersOf = ({ rows, columns, outliers }) =>
  range(rows * columns).filter((patch) => !outliers?.patches.some(([row, column]) => row * columns + column === patch));

/**
 * The square under the pointer, or else the one that is kept, and its pane.
 * @param {Pane[]} visible
 * @returns {{ pane: Pane, cell: Cell } | null}
 */
function askingOf(visible) {
  const own = visible.map((pane) => ({ pane, cell: store.state.views[pane.index].alike })).find(({ cell }) => cell);
  return /** @type {any} */ (Array.isArray(page.hovered?.query) ? { pane: page.hovered.pane, cell: page.hovered.query } : own ?? null);
}

/**
 * Draw the pictures in the colours of their components or, while a square asks, lit where they are like it.
 * @param {Pane[]} visible
 */
export function drawAlike(visible) {
  const packs = packsOf(visible, nameOfFeatures()), asking = packs && askingOf(visible), table = colours[store.state.colormap];
  const colouring = colouringOf(visible, packs), failure = packs ? null : visible.find(({ packs }) => packs.failure)?.packs.failure;
  const square = asking ? asking.cell[0] * asking.pane.facts.columns + asking.cell[1] : -1,
    lines = matchesShown(visible, colouring, asking && [visible.indexOf(asking.pane), square]);
  setState(failure ? "failed" : "ready", !failure?.final);
  root.classList.toggle("vx-coloured", !asking);
  showLead(SAME_COLOUR);
  visible.forEach((pane, index) => {
    const isAsking = asking?.pane === pane, layer = layerOfFeatures(pane), raster = asking ? undefined : colouring?.rasters[index];
    const patches = asking ? cosines(packs[index].vectors, packs[visible.indexOf(asking.pane)].vectors, square) : null;
    // Nothing is as much like the asking square as itself; each picture shows what is most like it there.
    const others = patches?.filter((_, patch) => !isAsking || patch !== square);
    const scale = others ? fittedScale([others], { quantity: QUANTITY }) : /** @type {any} */ (null);
    const most = patches && asking ? mostAlike(pane, patches, asking) : null, cell = isAsking ? asking.cell : most?.cell;
    pane.present({
      patches, scale, table, marks: cell ? [{ token: pane.attention.token(...cell), colour: "white", isDashed: !isAsking }] : [], named: [],
      look: { ...lookOf(), raster },
    }, Boolean(asking ?? colouring));
    showLegend(pane, scale, others, table, QUANTITY, isDouble() ? ", its own" : "");
    if (raster) {
      pane.find("legend").hidden = false;
      pane.find("quantity").textContent = `three colours hold ${wholePercent(colouring?.share ?? 0)} of the differences`;
    }
    setText(pane.find("badge"), [
      wholeName(pane.view), pane.model.title, layer === undefined ? "" : `after layer ${layer}`, pane.facts.name,
    ].filter(Boolean).join(" · "));
    const text = most ? most.text + (isAsking || lines?.length !== 0 ? "" : NO_LINE) : failure ? reasonOf(failure)
      : colouring ? `The first three principal components of ${visible[1] ? "both pictures together" : "this picture"}, as colours.`
        : "Features are on their way …";
    for (const name of ["status", "live"]) setText(pane.find(name), text);
    // Of two pictures, what is found in the other one.
    if (most && (!isAsking || visible.length === 1)) showLead(text);
    pane.element.classList.toggle("vx-chosen-pane", isDouble() && pane.index === page.active);
  });
  if (page.moveTime) timings.hovers.push(performance.now() - page.moveTime);
  page.moveTime = 0;
  showFilm(visible);
  drawLines(visible, lines ?? []);
}

/**
 * The matches that get lines: the best, or that of the asking square; null until they are known, or if no lines are wanted.
 * @param {Pane[]} visible
 * @param {Colouring | null} colouring
 * @param {[number, number] | null} asking index of its pane, and its square
 * @returns {Matches | null}
 */
function matchesShown(visible, colouring, asking) {
  if (!colouring || visible.length < 2 || !find("lines-on").checked) return null;
  colouring.matching ??= matchesOf(colouring.squares, pause).then((found) => {
    colouring.matches = found;
    requestDraw();
  });
  return colouring.matches?.filter(({ patches }) => !asking || patches[asking[0]] === asking[1]).slice(0, MOST_LINES) ?? null;
}

/**
 * @param {Pane[]} visible
 * @param {Matches} lines
 */
function drawLines(visible, lines) {
  const canvas = find("lines"), { left, top, width, height } = find("panes").getBoundingClientRect(), context = contextOf(canvas);
  // It is empty then.
  Object.assign(canvas, { width, height });
  for (const { patches } of lines) patches.forEach((patch, index) => {
    const { painter, attention } = visible[index], edges = visible[index].find("canvas").getBoundingClientRect();
    const [across, down] = painter.centre(attention.cell(patch + attention.prefix));
    context[index ? "lineTo" : "moveTo"](edges.left - left + across * edges.width, edges.top - top + down * edges.height);
  });
  Object.assign(context, { strokeStyle: "white", lineWidth: 1.5, shadowColor: "black", shadowBlur: 3 }).stroke();
}

/**
 * Which square is most like the asking one, and a sentence of it; beside that, none of its neighbours counts.
 * @param {Pane} pane
 * @param {Float32Array} values
 * @param {{ pane: Pane, cell: Cell }} asking
 */
function mostAlike(pane, values, { pane: source, cell: [row, column] }) {
  const { attention } = pane, cellOf = (/** @type {number} */ patch) => attention.cell(patch + attention.prefix);
  const isNear = (/** @type {Cell} */ [across, down]) =>
    source === pane && Math.max(Math.abs(across - row), Math.abs(down - column)) <= NEAR;
  const others = values.map((value, patch) => (isNear(cellOf(patch)) ? -2 : value)), most = Math.max(...others);
  const cell = cellOf(others.indexOf(most)), neighbours = source === pane ? ", but for its neighbours," : "";
  const [of, within] = isDouble() ? [` of ${"AB"[source.index]}`, ` in ${"AB"[pane.index]}`] : ["", ""];
  const text = `Patch (${row}, ${column})${of}: most like it${within}${neighbours} is (${cell.join(", ")}), cosine ${digits(most)}.`;
  return { cell, text };
}

/**
 * The first picture in the colours of each layer, as they are computed.
 * @param {Pane[]} visible
 */
function showFilm(visible) {
  const [pane] = visible, chosen = layerOfFeatures(pane);
  showStrip(pane, chosen, (canvas, layer) => {
    const colouring = colouringOf(visible, packsOf(visible, nameOfFeatures(layer === chosen ? undefined : layer)));
    pane.painter.draw(canvas, null, null, null, { ...smallLook(), raster: colouring?.rasters[0] });
  });
}

/** The choice of the second picture. */
export class Beside {
  constructor() {
    const options = SETTINGS.examples.map(({ id, caption, name }) => new Option(caption ?? name, id));
    find("beside-picture").append(...options, new Option("your own", OWN_PICTURE));
    // What is chosen here is the second picture; what is dropped takes the framed place.
    /** @type {HTMLElement} */ (find("beside").querySelector(".vx-file")).onclick = () => { page.active = 1; };
    listenTo("change", { "lines-on": requestDraw, "beside-picture": ({ target }) => {
      page.active = 1;
      choosePicture(target.value);
    } });
  }

  /** @param {State} state */
  show({ views: [first, second = first] }) {
    find("beside").hidden = !isAlike() || second === first;
    const { options } = find("beside-picture"), isExample = SETTINGS.examples.some(({ id }) => id === second.picture);
    setText([...options].at(-1), panes[1].facts?.name ?? "your own");
    find("beside-picture").value = isExample ? second.picture : OWN_PICTURE;
    for (const option of options) option.hidden = option.value === first.picture || (isExample && option.value === OWN_PICTURE);
  }
}
