// Elements of the page.

export const element = /** @type {HTMLElement} */ (document.getElementById("vv-explorer"));
export const root = /** @type {HTMLElement} */ (element.querySelector(".vx"));

/**
 * An element of the page by its name, of the kind that explorer.html gives it.
 * @param {string} name
 * @returns {any}
 */
export const find = (name) => element.querySelector(`.vx-${name}`);

/**
 * Elements of the page by a selector, of the kinds that explorer.html gives them.
 * @param {string} selector
 * @returns {any[]}
 */
export const findAll = (selector) => [...element.querySelectorAll(selector)];

/**
 * Let parts of the page act.
 * @param {"click" | "change" | "input"} event
 * @param {Record<string, (event: any) => any>} acts by the names of the parts
 */
export function listenTo(event, acts) {
  for (const [name, act] of Object.entries(acts)) find(name)[`on${event}`] = act;
}

/**
 * An element with properties and children; `role` and names with a dash are attributes.
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Record<string, any>} properties `dataset` is an object
 * @param {...(Node | string)} children
 * @returns {HTMLElementTagNameMap[Tag]}
 */
export function create(tag, { dataset, ...properties } = {}, ...children) {
  /** @type {any} */
  const created = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "role" || name.includes("-")) created.setAttribute(name, value);
    else created[name] = value;
  }
  Object.assign(created.dataset, dataset);
  created.append(...children);
  return created;
}

/**
 * @param {Record<string, any>} properties
 * @param {...(Node | string)} children
 */
export const createButton = (properties, ...children) => create("button", { type: "button", ...properties }, ...children);

/**
 * A label with children, of which the last is its control.
 * @param {string} title
 * @param {...Element} children
 */
export function labelled(title, ...children) {
  children.at(-1)?.setAttribute("aria-label", title);
  return create("label", {}, `${title} `, ...children);
}

/**
 * A row of a table, named by its first cell.
 * @param {string[]} texts
 * @param {string=} title
 */
export const tableRow = ([name, ...texts], title = "") =>
  create("tr", { title }, create("th", { textContent: name, scope: "row" }), ...texts.map((textContent) => create("td", { textContent })));

/**
 * An element of SVG.
 * @param {string} name
 * @param {Record<string, any>} attributes
 * @param {...(Node | string)} children
 */
export function svgPart(name, attributes, ...children) {
  const part = document.createElementNS("http://www.w3.org/2000/svg", name);
  setAttributes(part, attributes);
  part.append(...children);
  return part;
}

/**
 * @param {Element} part
 * @param {Record<string, any>} attributes
 */
export function setAttributes(part, attributes) {
  for (const [name, value] of Object.entries(attributes)) part.setAttribute(name, String(value));
}

/** @param {HTMLCanvasElement} canvas */
export const contextOf = (canvas) => /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));

/**
 * @param {number} width
 * @param {number} height
 */
export const createCanvas = (width, height) => create("canvas", { width, height });

/**
 * A white canvas.
 * @param {number} width
 * @param {number} height
 */
export function whiteCanvas(width, height) {
  const canvas = createCanvas(width, height);
  Object.assign(contextOf(canvas), { fillStyle: "white" }).fillRect(0, 0, canvas.width, canvas.height);
  return canvas;
}

/**
 * Remove or make the last children, so that there are `count`; `make` gets the index of each.
 * @param {Element} holder
 * @param {number} count
 * @param {(index: number) => Element} make
 */
export function setChildCount(holder, count, make) {
  while (holder.children.length > count) holder.lastElementChild?.remove();
  while (holder.children.length < count) holder.append(make(holder.children.length));
}

/**
 * Change a text only if it differs: a screen reader reads a live region anew with every change.
 * @param {Element} target
 * @param {string} text
 */
export function setText(target, text) {
  if (target.textContent !== text) target.textContent = text;
}

let ids = 0;

/** A new id of an element. */
export const newId = () => `vx-${ids++}`;
