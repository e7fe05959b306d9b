// The dialog that makes a figure for a paper of the maps that are shown, of those that were kept before, or of the sheet.

import { Painter } from "./canvas.js";
import { contextOf, createButton, createCanvas, find, findAll } from "./dom.js";
import { FIGURE_FONT, FIGURE_TEXT, figureAsSvg, figureLayout, picturePdf } from "./figure_layout.js";
import { asPng, saveFile } from "./files.js";
import { notify } from "./messages.js";
import { range } from "./numbers.js";
import { activePane, page, drawnPanes } from "./page.js";
import { attentionOf } from "./pane.js";
import { backend } from "./settings.js";
import { SHEET_GAP, SHEET_MARGIN } from "./sheet.js";
import { longNameOf, queryOf } from "./tokens.js";

const POINTS_PER_UNIT = 0.75, SVG_SCALE = 2, PDF_SCALE = 4;
/** @type {FigurePanel[]} */
const keptPanels = [];
let nameOfFigure = "";
// Of the drawing that is wanted: an older one that ends later shows nothing.
let figureTurn = 0;

/** @param {string} text */
function measureText(text) {
  const context = contextOf(createCanvas(1, 1));
  context.font = `${FIGURE_TEXT}px ${FIGURE_FONT}`;
  return context.measureText(text).width;
}

/**
 * A panel of the map that a pane shows, as it is now.
 * @param {Pane} pane
 * @returns {FigurePanel}
 */
function panelOfPane(pane) {
  /** @type {Pane} */
  const shown = Object.assign(Object.create(Object.getPrototypeOf(pane)), pane);
  const { facts, painter, drawing: { look, table } } = shown, [low, high, quantity] = pane.legendTexts();
  /** @type {Promise<Painter> | null} */
  let large = null;
  const picture = async (/** @type {number} */ width) => {
    if (width > facts.width && facts.pixels[0] > facts.width) large ??= largePainter(facts).catch(() => painter);
    const canvas = createCanvas(width, Math.max(1, Math.round(width * painter.ratio)));
    shown.drawOn(canvas, (await large) ?? painter, { ...look, scale: Math.max(1, width / 640) });
    return canvas;
  };
  return {
    badge: pane.find("badge").textContent,
    caption: pane.find("status").textContent,
    legend: pane.find("legend").hidden ? null : { low, high, quantity, bar: async () => barOf(table) },
    ratio: painter.ratio,
    parts: (width) => [{ x: 0, y: 0, width, height: width * painter.ratio, picture }],
  };
}


/**
 * The colours from the low to the high end as a picture.
 * @param {ColourTable} table
 */
function barOf(table) {
  const canvas = createCanvas(table.length, 1), image = contextOf(canvas).createImageData(table.length, 1);
  new Uint32Array(image.data.buffer).set(table);
  contextOf(canvas).putImageData(image, 0, 0);
  return canvas;
}

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
 * The cells and the numbers of a sheet as items, and its height by its width.
 * @param {Sheet} sheet
 * @param {(cell: number) => FigurePicture} pictureOf a cell
 */
function sheetParts(sheet, pictureOf) {
  const { left, top } = SHEET_MARGIN, { layers } = sheet.attention.facts, { columnsOfCells } = sheet;
  const heightOf = (/** @type {number} */ width) => top + layers * sheet.cells(width, sheet.request.ratio).cellHeight;
  const partsOf = (/** @type {number} */ width) => {
    const { cellWidth, cellHeight } = sheet.cells(width, sheet.request.ratio);
    const title = (/** @type {any} */ text, /** @type {number} */ x, /** @type {number} */ y, /** @type {"end" | "middle"} */ anchor) =>
      ({ text: String(text), x, y, anchor });
    return [
      ...sheet.loadedCells.flatMap((isLoaded, cell) => !isLoaded ? [] : {
        x: left + (cell % columnsOfCells) * cellWidth, y: top + Math.floor(cell / columnsOfCells) * cellHeight,
        width: cellWidth - SHEET_GAP, height: cellHeight - SHEET_GAP, picture: pictureOf(cell), isPixelated: true,
      }),
      ...range(layers).filter((row) => row % Math.ceil(13 / cellHeight) === 0)
        .map((row) => title(row, left - 5, top + (row + 0.5) * cellHeight + 4, "end")),
      ...range(columnsOfCells).filter((column) => column === 0 ? cellWidth >= 22 : (column - 1) % Math.ceil(20 / cellWidth) === 0)
        .map((column) => title(column ? column - 1 : sheet.request.fusion, left + (column + 0.5) * cellWidth, top - 6, "middle")),
    ];
  };
  return { partsOf, heightOf };
}

/**
 * A panel of every layer and head.
 * @returns {FigurePanel}
 */
function panelOfSheet() {
  const sheet = /** @type {Sheet} */ (page.sheet), { attention, request, raster, columnsOfCells } = sheet;
  const { rows, columns } = attention.facts;
  const { partsOf, heightOf } = sheetParts(sheet, (cell) => async () => {
    const canvas = createCanvas(columns, rows), x = (cell % columnsOfCells) * columns, y = Math.floor(cell / columnsOfCells) * rows;
    contextOf(canvas).drawImage(raster, x, y, columns, rows, 0, 0, columns, rows);
    return canvas;
  });
  const { token, direction, fusion, shared } = request, { model, facts } = activePane();
  return {
    badge: `${model.title} · ${facts.name}`,
    caption: `${attentionOf(longNameOf(queryOf(token, facts)), direction)}, in every layer (rows) and head (columns, after the `
      + `${fusion} of all heads); ${shared ? "all on one scale" : "each on its own scale"}.`,
    legend: null,
    ratio: heightOf(640) / 640,
    parts: partsOf,
  };
}

/** The panels of the figure: those that were kept, and what is chosen now unless it is one of them. */
function panelsNow() {
  const chosen = find("paper-of").value === "sheet" ? [panelOfSheet()] : drawnPanes().map(panelOfPane);
  const keyOf = (/** @type {FigurePanel} */ { badge, caption }) => badge + caption, kept = new Set(keptPanels.map(keyOf));
  return [...keptPanels, ...chosen.filter((panel) => !kept.has(keyOf(panel)))];
}

function layoutNow() {
  const [badge, legend, caption] = ["badge", "legend", "caption"].map((name) => find(`paper-${name}`).checked);
  return figureLayout(panelsNow(), { badge, legend, caption }, measureText);
}

/**
 * A figure on a canvas of `scale` pixels a unit.
 * @param {FigureLayout} layout
 * @param {number} scale
 */
async function figureOnCanvas({ items, width, height }, scale) {
  const canvas = createCanvas(Math.round(width * scale), Math.round(height * scale)), context = contextOf(canvas);
  Object.assign(context, { fillStyle: "white" }).fillRect(0, 0, canvas.width, canvas.height);
  for (const item of items) {
    if (item.picture) {
      const picture = await item.picture(Math.round(item.width * scale));
      context.imageSmoothingEnabled = !item.isPixelated;
      context.drawImage(picture, item.x * scale, item.y * scale, item.width * scale, item.height * scale);
    } else {
      const textAlign = /** @type {CanvasTextAlign} */ (item.anchor === "middle" ? "center" : item.anchor);
      const font = `${item.isBold ? "bold " : ""}${FIGURE_TEXT * scale}px ${FIGURE_FONT}`;
      Object.assign(context, { fillStyle: "black", textAlign, font });
      context.fillText(item.text ?? "", item.x * scale, item.y * scale);
    }
  }
  return canvas;
}

const SAVE_FIGURE = {
  png2: async () => saveFile(await asPng(await figureOnCanvas(layoutNow(), 2)), `${nameOfFigure}.png`),
  png4: async () => saveFile(await asPng(await figureOnCanvas(layoutNow(), 4)), `${nameOfFigure}@4x.png`),
  svg: async () => {
    const layout = layoutNow(), addresses = new Map();
    for (const item of layout.items)
      if (item.picture) addresses.set(item, (await item.picture(Math.round(item.width * SVG_SCALE))).toDataURL());
    const title = layout.items.flatMap(({ text }) => text ?? []).join(" ");
    saveFile(figureAsSvg(layout, (item) => addresses.get(item), title), `${nameOfFigure}.svg`, "image/svg+xml");
  },
  pdf: async () => {
    const layout = layoutNow(), canvas = await figureOnCanvas(layout, PDF_SCALE);
    const { data } = contextOf(canvas).getImageData(0, 0, canvas.width, canvas.height), colours = new Uint8Array(data.length / 4 * 3);
    for (let from = 0, to = 0; from < data.length; from += 4, to += 3) colours.set(data.subarray(from, from + 3), to);
    const stream = new Blob([colours]).stream().pipeThrough(new CompressionStream("deflate"));
    const deflated = new Uint8Array(await new Response(stream).arrayBuffer());
    const points = [layout.width, layout.height].map((length) => length * POINTS_PER_UNIT);
    saveFile(picturePdf(deflated, [canvas.width, canvas.height], [points[0], points[1]]), `${nameOfFigure}.pdf`);
  },
};

async function showPreview() {
  const turn = ++figureTurn, layout = layoutNow(), preview = find("paper-preview");
  const canvas = await figureOnCanvas(layout, Math.min(2, window.devicePixelRatio || 1));
  if (turn !== figureTurn) return;
  Object.assign(preview, { width: canvas.width, height: canvas.height });
  contextOf(preview).drawImage(canvas, 0, 0);
  preview.style.aspectRatio = `${layout.width} / ${layout.height}`;
  preview.setAttribute("aria-label", `The figure: ${layout.items.flatMap(({ text }) => text ?? []).join(" ")}`);
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
  return showPreview();
}

/** Let the controls of the dialog act. */
export function offerFigure() {
  for (const control of findAll(".vx-paper :is(select, input)")) control.onchange = showPreview;
  for (const button of findAll("[data-figure]")) button.onclick = async () => {
    try {
      await /** @type {any} */ (SAVE_FIGURE)[button.dataset.figure]();
      find("paper-said").textContent = "Saved.";
    } catch (/** @type {any} */ error) {
      find("paper-said").textContent = `That did not work: ${error.message}.`;
    }
  };
  find("paper-keep").onclick = () => {
    keptPanels.push(...panelsNow().slice(keptPanels.length));
    find("paper").close();
    notify(`Kept as panel ${String.fromCharCode(96 + keptPanels.length)}. Choose another map, then open the figure again.`);
  };
  find("paper-close").onclick = () => find("paper").close();
}
