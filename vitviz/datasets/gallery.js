// The gallery: PICTURES in tiles, sorted by one of KEYS. Only tiles that are visible are created.
"use strict";
const PAGE_SIZE = 120;
const TEXT_KEYS = ["path", "label"];
const byId = (id) => document.getElementById(id);
const state = { key: KEYS[0].name, down: KEYS[0].down, find: "", maps: false, wrong: false, limit: PAGE_SIZE };

function matchingPictures() {
  const query = state.find.trim().toLowerCase();
  const matches = PICTURES.filter((each) => (each.wrong || !state.wrong) && `${each.path}\n${each.label ?? ""}\n${each.truth ?? ""}`.toLowerCase().includes(query));
  const sign = state.down ? -1 : 1;
  // Pictures without a value come last in either order; ties are sorted by name.
  return matches.sort((first, second) => {
    const [a, b] = [first[state.key] ?? null, second[state.key] ?? null];
    if (a === null || b === null) return (a === null) - (b === null) || compare(first.path, second.path);
    return sign * compare(a, b) || compare(first.path, second.path);
  });
}

function compare(a, b) {
  return a < b ? -1 : a > b ? 1 : 0;
}

function element(kind, className, text) {
  const node = document.createElement(kind);
  node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

function tile(picture) {
  const item = element("li", "tile");
  const body = element(picture.explorer ? "a" : "div", "");
  if (picture.explorer) body.href = picture.explorer;
  const frame = element("div", "frame");
  const image = (state.maps && picture.map) || picture.thumbnail;
  if (image) {
    const photo = element("img", "");
    photo.src = `data:image/jpeg;base64,${image}`;
    photo.alt = state.maps && picture.map ? `${MAP_NAME} of ${picture.path}` : picture.path;
    photo.decoding = "async";
    frame.append(photo);
  } else {
    frame.append(element("span", "", picture.error ?? "analysed before the gallery was requested: no picture kept"));
  }
  const text = element("div", "text");
  const name = element("div", "name", picture.path);
  name.title = picture.path;
  text.append(name);
  if (picture.label) text.append(element("div", "label", `${picture.label} ${(100 * picture.confidence).toFixed(0)} %`));
  if (picture.wrong) text.append(element("div", "numbers", `true class: ${picture.truth}`));
  for (const key of KEYS) {
    const value = picture[key.name];
    if (key.unit && typeof value === "number") text.append(element("div", "numbers", `${key.title} ${format(value, key.unit)}`));
  }
  body.append(frame, text);
  item.append(body);
  return item;
}

function format(value, unit) {
  return unit === "share" ? `${(100 * value).toFixed(1)} %` : `${value.toFixed(2)} ${unit}`;
}

function draw() {
  const pictures = matchingPictures();
  byId("tiles").replaceChildren(...pictures.slice(0, state.limit).map(tile));
  byId("more").hidden = pictures.length <= state.limit;
  const count = Math.min(state.limit, pictures.length);
  byId("count").textContent = `${count.toLocaleString("en")} of ${pictures.length.toLocaleString("en")} shown`;
  const [up, down] = TEXT_KEYS.includes(state.key) ? ["A to Z", "Z to A"] : ["lowest first", "highest first"];
  byId("order").textContent = state.down ? `↓ ${down}` : `↑ ${up}`;
}

function change(values) {
  Object.assign(state, { limit: PAGE_SIZE }, values);
  draw();
}

const MAP_NAME = byId("look").textContent.trim();
for (const key of KEYS) byId("sort").append(new Option(key.title, key.name));
byId("truth").hidden = !PICTURES.some((each) => each.truth);
byId("look").hidden = !PICTURES.some((each) => each.map);
byId("sort").onchange = (event) => change({ key: event.target.value, down: KEYS.find((key) => key.name === event.target.value).down });
byId("order").onclick = () => change({ down: !state.down });
byId("find").oninput = (event) => change({ find: event.target.value });
byId("wrong").onchange = (event) => change({ wrong: event.target.checked });
byId("maps").onchange = (event) => change({ maps: event.target.checked });
byId("more").onclick = () => change({ limit: state.limit + 4 * PAGE_SIZE });
draw();
