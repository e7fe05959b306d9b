// What is saved and shared. A part of explorer.js, whose names it uses.

const OPEN_TO_ALL = " Whoever has this link sees your picture, as long as the server keeps it.";
const OWN_MODEL = " Your own checkpoint is not part of it: whoever opens it is told to open the same one.";
const NEEDS_SERVER = "What is shown here needs the server: the file opens with what it can compute by itself.";
const SHEET_WIDTH = 1600;

const ACTS = {
  link: async () => {
    const { link } = await described(), { views } = store.state;
    const notes = [views.some(({ picture }) => picture.startsWith("picture:")) ? OPEN_TO_ALL : "", views.some(({ model }) => model.startsWith("own:")) ? OWN_MODEL : ""];
    await copy(new URL(addressOf(link), location.href).href, notes.join(""));
  },
  python: async () => copy((await described()).python),
  picture: async () => {
    const captions = shownPanes().map((pane) => pane.find("status").textContent), withLegend = shownPanes().filter((pane) => !pane.find("legend").hidden);
    save(await asPng(withCaption(await pictureOf(), captions, withLegend)), fileName("png"));
  },
  sheet: async () => save(await asPng(withCaption(sheet.picture(SHEET_WIDTH), [sentenceOfSheet()])), fileName("sheet.png")),
  drawing: () => save(sheetAsSvg(sheet, sentenceOfSheet()), fileName("svg"), "image/svg+xml"),
  numbers: () => save(numbersOf(activePane(), chosenQuery(), metadata()), fileName("npz")),
  video: async () => {
    const { facts, view } = activePane(), say = (text) => { find("said").textContent = text; };
    const state = legal(store.state), key = JSON.stringify([facts.uid, state]);
    say("The server renders the video; below is how far it is, and a button to stop it.");
    try {
      const reply = await films.want("film", key, { kind: "film", state, index: active, uid: facts.uid });
      save(await fetchPath(reply.path), `${pictureName()}-${view.method}.mp4`, "video/mp4");
      say(`${reply.caption} ${reply.sound ? `Sound: ${reply.sound}.` : "The clip has no sound."}`);
    } catch (error) {
      if (error.replaced) return say("");
      throw error;
    }
  },
  page: async () => {
    const page = new TextDecoder().decode(await fetchFile(activePane(), activePane().facts, "page")), script = page.lastIndexOf("<script>");
    const { views, maps, isLess } = await keptOffline(), { panel, guide, ...look } = store.state, served = JSON.parse(slot("STATE").exec(page.slice(script))[1]);
    const state = { ...served, ...look, views: views.map((view) => ({ ...served.views[0], ...view })), layout: views.length < look.views.length ? "one" : look.layout };
    const written = Object.entries({ STATE: state, MAPS: maps }).reduce((text, [name, value]) => text.replace(slot(name), () => `const ${name} = ${inScript(value)};`), page.slice(script));
    save(page.slice(0, script) + written, `${pictureName()}.html`, "text/html");
    find("said").textContent = isLess ? NEEDS_SERVER : "";
  },
};

/** Where the saved page has a value of its own. */
const slot = (name) => new RegExp(`^const ${name} = (.*);$`, "m");

/** As JavaScript that no part of ends the script element. */
const inScript = (value) => JSON.stringify(value).replaceAll("<", "\\u003c");

/** What a saved page shows of this analysis, the files of its maps that need a model, and whether that is less than is shown. */
async function keptOffline() {
  const { facts, key } = activePane(), maps = {};
  const own = shownPanes().filter((pane) => pane.key === key);
  const views = await Promise.all(own.map(async (pane) => {
    const { view: { method, parameters, pins } } = pane, target = parameters.target ?? null;
    const names = [pane.chosen, ...(pane.hasToken ? pins : [])].map((query) => pane.fileOf(query)).filter((name) => name?.startsWith("map "));
    // A text or another picture is nothing that a file could be asked about.
    if (target !== null && !isOfClasses(target)) return keptAlone(pane, facts);
    // The map without parameters too: it is what the menu of methods leads back to.
    for (const name of names.length ? [...names, mapName(method, {})] : []) maps[name] = toBase64(await fetchFile(pane, facts, name));
    return { method, parameters, pins };
  }));
  const isLess = views.length < store.state.views.length || own.some(({ view: { method, parameters } }, place) => !same({ method, parameters }, { method: views[place].method, parameters: views[place].parameters }));
  return { views, maps, isLess };
}

/** What is left of a pane where no model is. */
function keptAlone({ view: { method, parameters, pins } }, facts) {
  const next = worksOffline(method, facts) ? method : facts.rolls ? "rollout" : "attention", isHere = (query) => tokenOf(query, facts, null) !== null;
  const isKept = ([name, value]) => (next === "rollout" ? name === "query" : LIVE_PARAMETERS.includes(name)) && (name !== "query" || isHere(value));
  return { method: next, parameters: Object.fromEntries(Object.entries(parameters).filter(isKept)), pins: pins.filter(isHere) };
}

function toBase64(buffer) {
  let text = "";
  for (const byte of new Uint8Array(buffer)) text += String.fromCharCode(byte);
  return btoa(text);
}

const activePane = () => panes[active];
const chosenQuery = () => activePane().chosen;

/** What the numbers are of, for whoever finds the file later. */
function metadata() {
  const { view, facts, model } = activePane(), { link } = latest;
  return { made_by: "vitviz", model: model.name, step: view.step, picture: facts.name, fit: facts.fit, resolution: facts.resolution,
    method: view.method, parameters: view.parameters, prefix: facts.prefix, grid: [facts.rows, facts.columns], caption: activePane().sentence(chosenQuery(), activePane().values(chosenQuery())), link };
}

/** What is shown, as large as the picture was given: two maps side by side, the second as high as the first. */
async function pictureOf() {
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

/** What the sheet shows, in words. */
function sentenceOfSheet() {
  const { token, direction, fusion, shared } = sheet.wanted, name = longNameOf(queryOf(token, sheet.attention.facts));
  const what = direction === "column" ? `Attention each patch pays to ${name}` : `Attention from ${name} to each patch`;
  return `${what}, in every layer (rows) and head (columns, after the ${fusion} of all heads); ${shared ? "all on one scale" : "each on its own scale"}.`;
}

/** A picture with the colours of maps, of the panes that are given, and captions below it. */
function withCaption(picture, captions, legends = []) {
  const size = Math.max(12, Math.round(picture.width / 55)), lines = [];
  const measure = canvasOf(1, 1).getContext("2d");
  measure.font = `${size}px system-ui, sans-serif`;
  for (const caption of captions) {
    let line = "";
    for (const word of caption.split(" ")) {
      if (line && measure.measureText(`${line} ${word}`).width > picture.width - 2 * size) lines.push(line), line = word;
      else line = line ? `${line} ${word}` : word;
    }
    lines.push(line);
  }
  const bar = legends.length ? 2 * size : 0;
  const canvas = canvasOf(picture.width, picture.height + bar + Math.round(1.4 * size * (lines.length + 1)));
  const context = canvas.getContext("2d");
  Object.assign(context, { fillStyle: "white" }).fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(picture, 0, 0);
  Object.assign(context, { fillStyle: "black", font: measure.font, textBaseline: "middle" });
  legends.forEach((pane, index) => {
    const part = picture.width / legends.length, left = index * part + size, middle = picture.height + 1.2 * size;
    const [low, high, quantity] = pane.legendTexts(), end = `${high}  ${quantity}`, [before, after] = [low, end].map((text) => measure.measureText(text).width + 0.5 * size);
    // Of what the texts leave; where that is nothing, the last one is written narrower.
    const start = left + before, width = clamped(part - 2 * size - before - after, 3 * size, Math.min(256, part / 3));
    for (let step = 0; step < width; step++) {
      const pixel = pane.shown.table[Math.floor(256 * step / width)];
      context.fillStyle = `rgb(${pixel & 255} ${(pixel >> 8) & 255} ${(pixel >> 16) & 255})`;
      context.fillRect(start + step, middle - size / 2, 1.5, size);
    }
    context.fillStyle = "black";
    context.fillText(low, left, middle);
    context.fillText(end, start + width + 0.5 * size, middle, part - before - width - 2.5 * size);
  });
  lines.forEach((line, index) => context.fillText(line, size, picture.height + bar + 1.4 * size * (index + 0.8)));
  return canvas;
}

async function wholePicture(pane) {
  const { facts } = pane, larger = facts.pixels[0] > facts.width;
  const painter = larger ? await largePainter(pane) : pane.painter, canvas = canvasOf(painter.facts.width, painter.facts.height);
  pane.drawOn(canvas, painter, { ...pane.shown.look, scale: painter.facts.width / facts.width });
  return canvas;
}

/** A painter on the picture as it was given. */
async function largePainter(pane) {
  const { facts } = pane, image = await createImageBitmap(new Blob([await fetchFile(pane, facts, "picture")]));
  const { width, height } = image, times = [width / facts.width, height / facts.height];
  return new Painter({ ...facts, width, height, box: facts.box.map((edge, index) => edge * times[index % 2]) }, image);
}

async function asPng(canvas) {
  const blob = await new Promise((done) => canvas.toBlob(done));
  if (!blob) throw Error(`${canvas.width} × ${canvas.height} pixels are more than this browser can save`);
  return blob;
}

const pictureName = () => activePane().facts.name.replace(/\.[^.]*$/, "") || "picture";

function fileName(suffix) {
  const { facts, view } = activePane(), name = pictureName();
  const token = hasParameter(view.method, "query") ? `-${nameOf(chosenQuery() ?? queryOf(activePane().token ?? 0, facts)).replace(/\W+/g, "-").replace(/-$/, "")}` : "";
  return `${name}-${view.method}${token}.${suffix}`;
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
  if (!activePane().painter || !activePane().values(chosenQuery())) return;
  find("said").textContent = "";
  try {
    await ACTS[name]();
  } catch (error) {
    if (error.expired) renew(activePane());
    find("said").textContent = `That did not work: ${error.expired ? "the server had to compute this picture again; try once more" : error.message}.`;
  }
}

for (const button of element.querySelectorAll("[data-act]")) button.onclick = () => act(button.dataset.act);
