// Pinned tokens, each with its colour and a small picture of its map.

// Okabe and Ito's colours, which those who see fewer colours tell apart as well.
const PIN_COLOURS = ["#e69f00", "#56b4e9", "#009e73", "#f0e442", "#cc79a7", "#d55e00"];

class Pins {
  /** @param remove is called with the pin whose picture is clicked */
  constructor(element, remove) {
    Object.assign(this, { element, remove, list: [] });
  }

  /** Pin a pane's token, or unpin it where another pane's linked token is; beyond six, the oldest goes. */
  toggle(pane, token) {
    const pinned = this.list.find((pin) => pane.linked(pin.pane, pin.token) === token);
    if (pinned) this.remove(pinned);
    else {
      const used = this.list.map((pin) => pin.colour), free = PIN_COLOURS.find((colour) => !used.includes(colour));
      if (!free) this.list.shift();
      this.list.push({ pane, token, colour: free ?? used[0] });
    }
    return !pinned;
  }

  drop(pinned) {
    this.list = this.list.filter((pin) => pin !== pinned);
  }

  clear() {
    this.list = [];
  }

  /** What a pane has pinned: its own tokens, each with its colour. */
  marks(pane) {
    return this.list.map((pin) => ({ token: pane.linked(pin.pane, pin.token), colour: pin.colour }));
  }

  /** One small picture for each pin; `draw` fills a canvas with a token's map of the pane. */
  show(pane, draw) {
    const boxes = [...this.element.children], marks = this.marks(pane);
    while (boxes.length > marks.length) boxes.pop().remove();
    while (boxes.length < marks.length) boxes.push(this.element.appendChild(this.box()));
    marks.forEach(({ token, colour }, index) => {
      const box = boxes[index], [canvas, label] = box.children;
      const name = token === null ? "not in this map" : pane.attention.name(token);
      box.onclick = () => this.remove(this.list[index]);
      box.setAttribute("aria-label", `Unpin ${name}`);
      canvas.style.borderColor = colour;
      label.textContent = name;
      draw(canvas, token);
    });
  }

  box() {
    const box = document.createElement("button");
    Object.assign(box, { type: "button", className: "vx-pin" });
    box.append(document.createElement("canvas"), document.createElement("span"));
    return box;
  }
}
