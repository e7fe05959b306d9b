// One head through the layers: a part of explorer.js, whose names it uses.

// It waits for the pointer to rest, so that it takes nothing from the picture's time.
const STRIP_AFTER = 40;
let striping = 0;

/** One token in every layer with the chosen head, in a row of pictures; behind the sheet in time. */
function showStrip(pane, token) {
  clearTimeout(striping);
  if (!find("strip").open || token === null) return;
  striping = setTimeout(() => {
    const { facts, choice, attention, painter } = pane, frames = find("frames"), small = { ...look, grid: false };
    if (!painter) return;
    while (frames.children.length > facts.layers) frames.lastElementChild.remove();
    while (frames.children.length < facts.layers) frames.append(frame(frames.children.length));
    const direction = LIVE.includes(choice.direction) ? choice.direction : "row";
    [...frames.children].forEach((box, layer) => {
      const values = attention.map(layer, choice.head, token, direction);
      painter.draw(box.firstElementChild, values?.subarray(attention.prefix), values ? attention.range(values) : [0, 1], colours[look.colormap], small);
      box.setAttribute("aria-pressed", layer === choice.layer);
    });
  }, STRIP_AFTER);
}

function frame(layer) {
  const box = document.createElement("button");
  Object.assign(box, { type: "button", className: "vx-frame", onclick: () => chooseLayer(layer) });
  box.append(document.createElement("canvas"), `layer ${layer}`);
  return box;
}

find("strip").ontoggle = ask;
