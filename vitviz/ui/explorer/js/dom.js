// Elements of the page.

/**
 * An element: its properties, or attributes where their names have a dash, and what is in it.
 * @param properties also `role`, an attribute, and `dataset`, an object
 */
function create(tag, { dataset, ...properties } = {}, ...children) {
  const part = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "role" || name.includes("-")) part.setAttribute(name, value);
    else part[name] = value;
  }
  Object.assign(part.dataset, dataset);
  part.append(...children);
  return part;
}

const createButton = (properties, ...children) => create("button", { type: "button", ...properties }, ...children);

const canvasOf = (width, height) => create("canvas", { width, height });
