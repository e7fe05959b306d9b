// Pinned tokens, each with its colour and a small picture of its map.

// Okabe and Ito's colours, which those who see fewer colours tell apart as well.
const PIN_COLOURS = ["#e69f00", "#56b4e9", "#009e73", "#f0e442", "#cc79a7", "#d55e00"];

/** One small picture for each pin of a pane; `draw` fills a canvas with a token's map, `remove` receives a place. */
function showPins(holder, pins, draw, remove) {
  while (holder.children.length > pins.length) holder.lastElementChild.remove();
  while (holder.children.length < pins.length) holder.append(createButton({ className: "vx-pin" }, create("canvas"), create("span")));
  pins.forEach((query, place) => {
    const box = holder.children[place], [canvas, label] = box.children;
    box.onclick = () => remove(place);
    box.setAttribute("aria-label", `Unpin ${nameOf(query)}`);
    canvas.style.borderColor = PIN_COLOURS[place];
    label.textContent = nameOf(query);
    draw(canvas, query);
  });
}
