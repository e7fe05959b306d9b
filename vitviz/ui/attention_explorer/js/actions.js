// What is saved and shared: a part of explorer.js, whose names it uses.

const ACTS = {
  link: () => copy(new URL(link(), location.href).href),
  python: () => copy(asPython(active, shownToken(), look)),
  picture: () => picture().toBlob((blob) => save(blob, fileName("png"))),
  sheet: () => find("sheet").toBlob((blob) => save(blob, fileName("sheet.png"))),
  drawing: () => save(sheetAsSvg(sheet, active.sentence(shownToken(), active.values(shownToken()))), fileName("svg"), "image/svg+xml"),
  numbers: () => save(numbersOf(active, shownToken()), fileName("npz")),
  page: async () => save(await fetchFile(active.facts, "page"), fileName("html"), "text/html"),
};

function shownToken() {
  return active.linked(chosen.pane, chosen.token) ?? active.facts.start;
}

/** The active pane's picture with its map, as large as the page has it. */
function picture() {
  const canvas = document.createElement("canvas"), token = shownToken(), values = active.values(token);
  Object.assign(canvas, { width: active.facts.width, height: active.facts.height });
  active.painter.paint(canvas, values.subarray(active.attention.prefix), active.attention.range(values), colours[look.colormap], look);
  if (token >= active.attention.prefix) active.painter.mark(canvas, active.attention.cell(token), "white", canvas.width / 300);
  return canvas;
}

function fileName(suffix) {
  const name = active.facts.name.replace(/\.[^.]*$/, "") || "picture";
  return `${name}-${tokenWord(active, shownToken()).replace(/\W+/g, "-")}.${suffix}`;
}

async function copy(text) {
  Object.assign(find("code"), { textContent: text, hidden: false });
  try {
    await navigator.clipboard.writeText(text);
    find("said").textContent = "Copied:";
  } catch {
    find("said").textContent = "This browser lets no page copy here; take it from below:";
  }
}

async function act(name) {
  if (!active.painter || !active.values(shownToken())) return;
  find("said").textContent = "";
  try {
    await ACTS[name]();
  } catch (error) {
    find("said").textContent = `That did not work: ${error.message}.`;
  }
}

for (const button of element.querySelectorAll(".vx-share button")) button.onclick = () => act(button.dataset.act);
