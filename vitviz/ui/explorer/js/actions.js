// What is saved and shared: a part of explorer.js, whose names it uses.

const OPEN_TO_ALL = " Whoever has this link sees your picture, as long as the server keeps it.";

const ACTS = {
  link: () => copy(new URL(link(), location.href).href, hasUploads() ? OPEN_TO_ALL : ""),
  python: () => copy(asPython(active, shownToken(), look)),
  picture: async () => save(await asPng(await picture()), fileName("png")),
  sheet: async () => save(await asPng(find("sheet")), fileName("sheet.png")),
  drawing: () => save(sheetAsSvg(sheet, active.sentence(shownToken(), active.values(shownToken()))), fileName("svg"), "image/svg+xml"),
  numbers: () => save(numbersOf(active, shownToken()), fileName("npz")),
  page: async () => save(await fetchFile(active.facts, "page"), fileName("html"), "text/html"),
};

function shownToken() {
  return active.linked(chosen.pane, chosen.token) ?? active.facts.start;
}

/** What is shown, as large as the picture was given: two maps side by side, the second as high as the first. */
async function picture() {
  const parts = await Promise.all(shownPanes().map(wholePicture)), height = parts[0].height;
  const widths = parts.map((part) => Math.round(part.width * height / part.height));
  const canvas = canvasOf(widths.reduce((sum, width) => sum + width), height);
  let left = 0;
  parts.forEach((part, index) => {
    canvas.getContext("2d").drawImage(part, left, 0, widths[index], height);
    left += widths[index];
  });
  return canvas;
}

async function wholePicture(pane) {
  const { facts } = pane, larger = facts.pixels[0] > facts.width;
  const painter = larger ? await largePainter(facts) : pane.painter, canvas = canvasOf(painter.facts.width, painter.facts.height);
  pane.drawOn(canvas, painter, { ...pane.shown.look, scale: painter.facts.width / facts.width });
  return canvas;
}

/** A painter on the picture as it was given. */
async function largePainter(facts) {
  const image = await createImageBitmap(new Blob([await fetchFile(facts, "picture")]));
  const { width, height } = image, times = [width / facts.width, height / facts.height];
  return new Painter({ ...facts, width, height, box: facts.box.map((edge, index) => edge * times[index % 2]) }, image);
}

function canvasOf(width, height) {
  return Object.assign(document.createElement("canvas"), { width, height });
}

async function asPng(canvas) {
  const blob = await new Promise((done) => canvas.toBlob(done));
  if (!blob) throw Error(`${canvas.width} × ${canvas.height} pixels are more than this browser can save`);
  return blob;
}

function fileName(suffix) {
  const name = active.facts.name.replace(/\.[^.]*$/, "") || "picture";
  return `${name}-${tokenWord(active, shownToken()).replace(/\W+/g, "-")}.${suffix}`;
}

function hasUploads() {
  return ["picture", "second.picture"].some((name) => new URLSearchParams(props.value.query).has(name));
}

async function copy(text, note = "") {
  Object.assign(find("code"), { textContent: text, hidden: false });
  try {
    await navigator.clipboard.writeText(text);
    find("said").textContent = `Copied.${note}`;
  } catch {
    find("said").textContent = `This browser lets no page copy here; take it from below.${note}`;
  }
}

async function act(name) {
  if (!active.painter || !active.values(shownToken())) return;
  find("said").textContent = "";
  try {
    await ACTS[name]();
  } catch (error) {
    if (error.expired) changed(active, error);
    find("said").textContent = `That did not work: ${error.expired ? "the server had to compute this picture again; try once more" : error.message}.`;
  }
}

for (const button of element.querySelectorAll(".vx-share button")) button.onclick = () => act(button.dataset.act);
