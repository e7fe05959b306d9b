// One head through the layers.

// It waits for the pointer to rest, so that it takes nothing from the picture's time.
const STRIP_AFTER = 40;
let striping = 0;

/** One token in every layer with the chosen head, in a row of pictures; `fittedScale` makes a scale of several maps. */
function showStrip(part, pane, token, table, look, fittedScale, choose) {
  clearTimeout(striping);
  if (!part.open || token === null) return;
  striping = setTimeout(() => {
    const { facts, view, attention, painter } = pane, frames = part.querySelector(".vx-frames");
    if (!painter) return;
    while (frames.children.length > facts.layers) frames.lastElementChild.remove();
    while (frames.children.length < facts.layers) frames.append(stripFrame(frames.children.length, choose));
    const direction = valueOf(view, "direction", facts) ?? "row", head = valueOf(view, "head", facts) ?? "mean";
    [...frames.children].forEach((box, layer) => {
      const patches = attention.map(layer, head, token, direction)?.subarray(attention.prefix);
      painter.draw(box.firstElementChild, patches, patches && fittedScale([patches]), table, look);
      box.setAttribute("aria-pressed", layer === valueOf(view, "layer", facts));
    });
  }, STRIP_AFTER);
}

function stripFrame(layer, choose) {
  return createButton({ className: "vx-frame", onclick: () => choose(layer) }, create("canvas"), `layer ${layer}`);
}
