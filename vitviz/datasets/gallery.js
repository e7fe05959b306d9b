// The gallery: PICTURES in tiles, sorted by one of KEYS. A tile is made when it is first shown.
"use strict";
const AT_ONCE = 120;
const TEXTS = ["path", "label"];
const part = (id) => document.getElementById(id);
const state = { key: KEYS[0].name, down: KEYS[0].down, find: "", maps: false, shown: AT_ONCE };

function chosen() {
  const words = state.find.trim().toLowerCase();
  const found = PICTURES.filter((each) => `${each.path}\n${each.label ?? ""}`.toLowerCase().includes(words));
  const sign = state.down ? -1 : 1;
  // What has no value stands last, whatever the order; equal ones by their names.
  return found.sort((one, other) => {
    const [a, b] = [one[state.key] ?? null, other[state.key] ?? null];
    if (a === null || b === null) return (a === null) - (b === null) || compare(one.path, other.path);
    return sign * compare(a, b) || compare(one.path, other.path);
  });
}

function compare(a, b) {
  return a < b ? -1 : a > b ? 1 : 0;
}

function element(kind, className, text) {
  const made = document.createElement(kind);
  made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function tile(picture) {
  const item = element("li", "tile");
  const body = element(picture.explorer ? "a" : "div", "");
  if (picture.explorer) body.href = picture.explorer;
  const frame = element("div", "frame");
  const image = (state.maps && picture.map) || picture.thumbnail;
  if (image) {
    const shown = element("img", "");
    shown.src = `data:image/jpeg;base64,${image}`;
    shown.alt = state.maps && picture.map ? `${MAP_NAME} of ${picture.path}` : picture.path;
    shown.decoding = "async";
    frame.append(shown);
  } else {
    frame.append(element("span", "", picture.error ?? "analysed before the gallery was asked for: no picture kept"));
  }
  const text = element("div", "text");
  const name = element("div", "name", picture.path);
  name.title = picture.path;
  text.append(name);
  if (picture.label) text.append(element("div", "label", `${picture.label} ${(100 * picture.confidence).toFixed(0)} %`));
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
  const found = chosen();
  part("tiles").replaceChildren(...found.slice(0, state.shown).map(tile));
  part("more").hidden = found.length <= state.shown;
  const shown = Math.min(state.shown, found.length);
  part("count").textContent = `${shown.toLocaleString("en")} of ${found.length.toLocaleString("en")} shown`;
  const [up, down] = TEXTS.includes(state.key) ? ["A to Z", "Z to A"] : ["lowest first", "highest first"];
  part("order").textContent = state.down ? `↓ ${down}` : `↑ ${up}`;
}

function change(values) {
  Object.assign(state, { shown: AT_ONCE }, values);
  draw();
}

const MAP_NAME = part("look").textContent.trim();
for (const key of KEYS) part("sort").append(new Option(key.title, key.name));
part("look").hidden = !PICTURES.some((each) => each.map);
part("sort").onchange = (event) => change({ key: event.target.value, down: KEYS.find((key) => key.name === event.target.value).down });
part("order").onclick = () => change({ down: !state.down });
part("find").oninput = (event) => change({ find: event.target.value });
part("maps").onchange = (event) => change({ maps: event.target.checked });
part("more").onclick = () => change({ shown: state.shown + 4 * AT_ONCE });
draw();
