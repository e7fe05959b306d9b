// Elements of the page.

export const element = document.getElementById("vv-explorer"), root = element.querySelector(".vx");
export const find = (name) => element.querySelector(`.vx-${name}`);

/**
 * An element with properties and children; `role` and names with a dash are attributes.
 * @param properties `dataset` is an object
 */
export function create(tag, { dataset, ...properties } = {}, ...children) {
  const created = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "role" || name.includes("-")) created.setAttribute(name, value);
    else created[name] = value;
  }
  Object.assign(created.dataset, dataset);
  created.append(...children);
  return created;
}

export const createButton = (properties, ...children) => create("button", { type: "button", ...properties }, ...children);

/** A label with children, of which the last is its control. */
export function labelled(title, ...children) {
  children.at(-1).setAttribute("aria-label", title);
  return create("label", {}, `${title} `, ...children);
}

export const createCanvas = (width, height) => create("canvas", { width, height });

/** Remove or make the last children, so that there are `count`; `make` gets the index of each. */
export function setChildCount(holder, count, make) {
  while (holder.children.length > count) holder.lastElementChild.remove();
  while (holder.children.length < count) holder.append(make(holder.children.length));
}

/** Change a text only if it differs: a screen reader reads a live region anew with every change. */
export function setText(target, text) {
  if (target.textContent !== text) target.textContent = text;
}

let ids = 0;

/** A new id of an element. */
export const newId = () => `vx-${ids++}`;
