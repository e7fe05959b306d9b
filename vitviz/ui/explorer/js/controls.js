// The controls beside the picture, and what is said below it.

let groups = 0;

class Controls {
  /**
   * @param names of the colour tables
   * @param changed is called with the name of a choice and its value, whenever a control is moved
   */
  constructor(root, names, changed) {
    this.find = (name) => root.querySelector(`.vx-${name}`);
    this.root = root;
    this.changed = changed;
    // Radio buttons of two explorers on one page must not be one group.
    this.group = `vx-${groups++}`;
    this.find("colormap").replaceChildren(...names.map((name) => new Option(name)));
    for (const radio of root.querySelectorAll(".vx-directions input")) {
      radio.name = `${this.group}-direction`;
      radio.onchange = () => changed("direction", radio.value);
    }
    this.find("method").onchange = (event) => event.target.value && changed("direction", event.target.value);
    this.find("layer").oninput = (event) => changed("layer", Number(event.target.value));
    this.find("play").onclick = () => changed("playing", this.find("play").getAttribute("aria-pressed") !== "true");
    this.find("view").onchange = (event) => changed("view", event.target.value);
    this.find("divider").oninput = (event) => changed("divider", Number(event.target.value));
    this.find("colormap").onchange = (event) => changed("colormap", event.target.value);
    this.find("opacity").oninput = (event) => changed("opacity", Number(event.target.value));
    for (const name of ["smooth", "grid", "shared"]) {
      this.find(name).onchange = (event) => changed(name, event.target.checked);
    }
  }

  /** Make the controls fit a model. */
  fit(facts) {
    Object.assign(this.find("layer"), { min: 0, max: facts.layers - 1 });
    this.find("rollout").hidden = !facts.rolls;
    const others = facts.methods.map(({ name, title }) => new Option(title, `map ${name}`));
    this.find("method").replaceChildren(new Option("other maps …", ""), ...others);
    this.find("method").hidden = !others.length;
    const heads = [...Object.keys(FUSIONS), ...Array(facts.heads).keys()];
    this.find("heads").replaceChildren(this.find("heads").firstElementChild, ...heads.map((head) => this.headChoice(head)));
  }

  headChoice(head) {
    const label = document.createElement("label"), radio = document.createElement("input"), text = document.createElement("span");
    Object.assign(radio, { type: "radio", name: `${this.group}-head`, value: head, onchange: () => this.changed("head", head) });
    text.textContent = head;
    label.append(radio, text);
    return label;
  }

  /** Say what is chosen: `choice` of the active pane, `look` of all. */
  show(choice, look, facts, active) {
    this.find("layer").value = choice.layer;
    this.find("layer-said").textContent = `${choice.layer} of 0–${facts.layers - 1}`;
    for (const radio of this.root.querySelectorAll(".vx-heads input")) radio.checked = radio.value === String(choice.head);
    for (const radio of this.root.querySelectorAll(".vx-directions input")) radio.checked = radio.value === choice.direction;
    this.find("play").setAttribute("aria-pressed", look.playing);
    this.find("play").textContent = look.playing ? "Stop" : "Play";
    for (const name of ["colormap", "opacity", "view", "divider"]) this.find(name).value = look[name];
    for (const name of ["smooth", "grid", "shared"]) this.find(name).checked = look[name];
    for (const name of ["layers", "heads"]) this.find(name).classList.toggle("vx-idle", !LIVE.includes(choice.direction));
    this.find("method").value = titleOf(facts, choice.direction) ? choice.direction : "";
    this.find("panes").parentElement.parentElement.dataset.view = look.view;
    this.find("divided").hidden = look.view !== "slide";
    this.find("active").hidden = look.view !== "two" && look.view !== "difference";
    this.find("active").textContent = `The controls are those of map ${active + 1}; click the other to change it.`;
  }

  sayOfCell(text) {
    if (this.find("cell").textContent !== text) this.find("cell").textContent = text;
  }

  /** "empty", "loading", "ready", "expired" or "failed", for the style sheet and for tests. */
  state(name) {
    this.find("panes").parentElement.parentElement.dataset.state = name;
    this.find("retry").hidden = name !== "failed";
  }
}
