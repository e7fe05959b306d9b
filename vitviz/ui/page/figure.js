// The dialog that makes a figure for a paper of the maps that are shown, of those that were kept before, or of the sheet.

import { namesOfHidden, wholeName } from "./answer.js";
import { Painter } from "./canvas.js";
import { attentionOf } from "./captions.js";
import { contextOf, createButton, createCanvas, find, findAll, listenTo } from "./dom.js";
import { FIGURE_TEXT, figureLayout } from "./figure_layout.js";
import { asPng, saveFile } from "./files.js";
import { legendTexts } from "./legend.js";
import { notify } from "./messages.js";
import { drawRaster, filledRaster } from "./mosaic.js";
import { activePane, isDouble, page, drawnPanes } from "./page.js";
import { backend } from "./settings.js";
import { longNameOf, queryOf } from "./token_names.js";
import { FIGURE_FONT, Recorder, vectorSvg } from "./vector.js";

/** @type {FigurePanel[]} */
const keptPanels = [];
let nameOfFigure = "";

/**
 * @param {string} text
 * @param {boolean=} isBold
 */
function measureText(text, isBold = false) {
  const context = contextOf(createCanvas(1, 1));
  context.font = `${isBold ? "bold " : ""}${FIGURE_TEXT}px ${FIGURE_FONT}`;
  return context.measureText(text).width;
}

/**
 * What the model says without what is hidden from it, as a sentence of a caption; of two maps, what is hidden.
 * @param {View} view
 */
function hiddenSentence(view) {
  const names = namesOfHidden(view);
  return names && (isDouble() ? ` Hidden from the model: ${names}.` : ` ${find("headline").textContent}`);
}

/**
 * A panel of the map that a pane shows, as it is now.
 * @param {Pane} pane
 * @returns {FigurePanel}
 */
function panelOfPane(pane) {
  /** @type {Pane} */
  const copy = Object.assign(Object.create(Object.getPrototypeOf(pane)), pane);
  const { facts, painter: { ratio }, drawing: { look, table } } = copy, [low, high, quantity] = legendTexts(pane);
  return {
    badge: pane.find("badge").textContent,
    caption: pane.find("status").textContent + hiddenSentence(pane.view),
    legend: pane.find("legend").hidden || look.raster ? null
      : { low, high, quantity, bar: (context, width, height) => drawRaster(context, barOf(table), 0, 0, width, height) },
    ratio,
    draw: (context, width, height) => {
      const surface = { width, height, getContext: () => context };
      copy.drawOn(/** @type {any} */ (surface), copy.painter, look);
    },
    enlarge: async () => {
      if (facts.pixels[0] > facts.width) copy.painter = await largePainter(facts).catch(() => copy.painter);
    },
  };
}

/**
 * The colours from the low to the high end as a picture.
 * @param {ColourTable} table
 */
const barOf = (table) => filledRaster(1, table.length, (/** @type {Uint8ClampedArray} */ bytes) => bytes.set(new Uint8Array(table.buffer)));

/**
 * A painter on the original picture.
 * @param {Facts} facts
 */
async function largePainter(facts) {
  const image = await createImageBitmap(new Blob([await backend.file(facts.uid, "picture")]));
  const { width, height } = image, times = [width / facts.width, height / facts.height];
  return new Painter(
    { ...facts, width, height, box: /** @type {any} */ (facts.box.map((edge, index) => edge * times[index % 2])) },
    /** @type {any} */ (image),
  );
}

/**
 * A panel of every layer and head.
 * @returns {FigurePanel}
 */
function panelOfSheet() {
  const sheet = /** @type {Sheet} */ (page.sheet).copy(), { model, facts, view } = activePane();
  const { token, direction, fusion, shared, ratio } = sheet.request;
  return {
    badge: [wholeName(view), model.title, facts.name].filter(Boolean).join(" · "),
    caption: `${attentionOf(longNameOf(queryOf(token, facts)), direction)}, in every layer (rows) and head (columns, after the `
      + `${fusion} of all heads); ${shared ? "all on one scale" : "each on its own scale"}.${hiddenSentence(view)}`,
    legend: null,
    ratio: sheet.heightOf(640) / 640,
    draw: (context, width) => sheet.drawOn(context, sheet.cells(width, ratio), "black"),
  };
}

/** The panels of the figure: those that were kept, and what is chosen now unless it is one of them. */
function panelsNow() {
  const chosen = find("paper-of").value === "sheet" ? [panelOfSheet()] : drawnPanes().map(panelOfPane);
  const keyOf = (/** @type {FigurePanel} */ { badge, caption }) => badge + caption, names = new Set(keptPanels.map(keyOf));
  return [...keptPanels, ...chosen.filter((panel) => !names.has(keyOf(panel)))];
}

/** @param {FigurePanel[]} panels */
function layoutOf(panels) {
  const [badge, legend, caption] = ["badge", "legend", "caption"].map((name) => find(`paper-${name}`).checked);
  return figureLayout(panels, { badge, legend, caption }, measureText);
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {FigureLayout} layout
 */
function drawFigure(context, { items, width, height }) {
  Object.assign(context, { fillStyle: "white" }).fillRect(0, 0, width, height);
  for (const { x, y, draw, text, isBold, ...size } of items) {
    context.save();
    context.translate(x, y);
    Object.assign(context, { fillStyle: "black", font: `${isBold ? "bold " : ""}${FIGURE_TEXT}px ${FIGURE_FONT}` });
    if (draw) draw(context, size.width, size.height);
    else context.fillText(text ?? "", 0, 0);
    context.restore();
  }
}

/**
 * A figure on a canvas of `scale` pixels a unit.
 * @param {FigureLayout} layout
 * @param {number} scale
 */
function figureOnCanvas(layout, scale) {
  const canvas = createCanvas(Math.round(layout.width * scale), Math.round(layout.height * scale));
  contextOf(canvas).scale(scale, scale);
  drawFigure(contextOf(canvas), layout);
  return canvas;
}

/** @param {FigureLayout} layout */
const textsOf = ({ items }) => items.flatMap(({ text }) => text ?? []).join(" ");

/** @type {Record<string, (layout: FigureLayout) => Promise<void>>} */
const SAVE_FIGURE = {
  png2: async (layout) => saveFile(await asPng(figureOnCanvas(layout, 2)), `${nameOfFigure}.png`),
  png4: async (layout) => saveFile(await asPng(figureOnCanvas(layout, 4)), `${nameOfFigure}@4x.png`),
  svg: async (layout) => {
    const recorder = new Recorder();
    drawFigure(/** @type {any} */ (recorder), layout);
    saveFile(vectorSvg(recorder, layout.width, layout.height, textsOf(layout)), `${nameOfFigure}.svg`, "image/svg+xml");
  },
};

function showPreview() {
  const layout = layoutOf(panelsNow()), preview = find("paper-preview");
  const canvas = figureOnCanvas(layout, Math.min(2, window.devicePixelRatio || 1));
  Object.assign(preview, { width: canvas.width, height: canvas.height });
  contextOf(preview).drawImage(canvas, 0, 0);
  preview.style.aspectRatio = `${layout.width} / ${layout.height}`;
  preview.setAttribute("aria-label", `The figure: ${textsOf(layout)}`);
  find("paper-kept").replaceChildren(...keptPanels.map((panel, index) => createButton({
    className: "vx-chip", textContent: `${String.fromCharCode(97 + index)} ×`, title: panel.badge,
    "aria-label": `Remove panel ${String.fromCharCode(97 + index)}: ${panel.badge}`,
    onclick: () => { keptPanels.splice(index, 1), showPreview(); },
  })));
}

/**
 * Open the dialog.
 * @param {string} name of its files, without suffix
 */
export function openFigure(name) {
  nameOfFigure = name;
  find("paper-said").textContent = "";
  find("paper").showModal();
  showPreview();
}

/** Let the controls of the dialog act. */
export function offerFigure() {
  for (const control of findAll(".vx-paper :is(select, input)")) control.onchange = showPreview;
  for (const button of findAll("[data-figure]")) button.onclick = async () => {
    try {
      const panels = panelsNow();
      await Promise.all(panels.map((panel) => panel.enlarge?.()));
      await SAVE_FIGURE[button.dataset.figure](layoutOf(panels));
    } catch (/** @type {any} */ error) {
      find("paper-said").textContent = `That did not work: ${error.message}.`;
    }
  };
  listenTo("click", {
    "paper-keep": () => {
      keptPanels.push(...panelsNow().slice(keptPanels.length));
      find("paper").close();
      notify(`Kept as panel ${String.fromCharCode(96 + keptPanels.length)}. Choose another map, then open the figure again.`);
    },
    "paper-close": () => find("paper").close(),
  });
}
