// What a map for a class, a text or a likeness is about, as one field of controls.

const BEST_OTHER = "the best of the others";

/** Whether a target is made of the classes of one model. */
const isOfClasses = (target) => typeof target === "number" || ["class", "against", "margin"].some((name) => target?.[name] !== undefined);

/** A target as it may stay when the picture, or how the model sees it, is another: its places are not the same. */
function withoutPlaces(target) {
  if (!target?.patch) return target ?? null;
  return target.like ? { like: target.like } : null;
}

class TargetField {
  /**
   * @param examples as facts.py describes them
   * @param liked what is known of pictures that were uploaded to be like, by id: name, url
   * @param hooks choose(target), upload(file), failed(text)
   */
  constructor(model, examples, liked, hooks) {
    Object.assign(this, { model, examples, liked, hooks, value: null });
    this.parts = [...(model.labels.length ? this.makeClasses() : []), ...(model.reads_text ? [this.makeWords()] : []), this.makeLikeness()];
  }

  labelled(title, input) {
    input.setAttribute("aria-label", title);
    return create("label", {}, `${title} `, input);
  }

  makeClasses() {
    const options = () => this.model.labels.map((_, index) => new Option(labelOf(this.model, index)));
    const list = create("datalist", { id: `vx-${groups++}` }, ...options());
    const others = create("datalist", { id: `vx-${groups++}` }, new Option(BEST_OTHER), ...options());
    this.target = this.textInput("vx-target", "the most probable", list.id);
    this.against = this.textInput("vx-against", "nothing", others.id);
    this.target.onchange = this.against.onchange = () => this.chooseClasses();
    return [this.labelled("Class", this.target), this.labelled("Against", this.against), list, others];
  }

  textInput(className, placeholder, list) {
    const input = create("input", { type: "text", className, placeholder, autocomplete: "off" });
    if (list) input.setAttribute("list", list);
    return input;
  }

  makeWords() {
    this.words = this.textInput("vx-words", "a photo of a cat, and Enter");
    this.words.maxLength = SETTINGS.max_text_chars;
    this.words.onchange = () => this.hooks.choose(this.words.value.trim() ? { text: this.words.value.trim() } : null);
    return this.labelled("In words", this.words);
  }

  makeLikeness() {
    const file = create("input", { type: "file", accept: "image/*,.tif,.tiff", className: "vx-like-file", "aria-label": "Upload a picture to be like" });
    file.onchange = () => {
      if (file.files.length) this.hooks.upload(file.files[0]);
      file.value = "";
    };
    const label = create("label", { className: "vx-button" }, "Another picture …", file), summary = create("summary", { textContent: "Like a picture" });
    this.pictures = create("div", { className: "vx-examples vx-like", role: "group", "aria-label": "Pictures to be like" });
    this.patch = this.textInput("vx-like-patch", "row, column");
    this.patch.title = "What is like this patch, of the picture chosen above, or of this one where none is chosen";
    this.patch.onchange = () => this.choosePatch();
    // Where there is nothing else to be about, nothing has to be opened first.
    const open = !this.model.labels.length && !this.model.reads_text;
    this.likeness = create("details", { className: "vx-likeness", open }, summary, this.pictures, label, this.labelled("Only its patch", this.patch));
    return this.likeness;
  }

  picture(id, name, url) {
    const onclick = () => this.hooks.choose(this.value?.like === id ? null : { like: id });
    const shown = url ? create("img", { src: url, alt: "", loading: "lazy" }) : name;
    return createButton({ title: name, onclick, dataset: { like: id }, "aria-label": `Like ${name}` }, shown);
  }

  /** The index of a class by its label, in any case; undefined for nothing, null where there is none. */
  indexOf(input) {
    const text = input.value.trim().toLowerCase();
    if (!text) return undefined;
    const index = this.model.labels.findIndex((_, place) => labelOf(this.model, place).toLowerCase() === text);
    return index < 0 ? null : index;
  }

  chooseClasses() {
    const isBest = this.against.value.trim().toLowerCase() === BEST_OTHER;
    const index = this.indexOf(this.target), other = isBest ? undefined : this.indexOf(this.against);
    const unknown = [[index, this.target], [other, this.against]].find(([found]) => found === null);
    if (unknown) return this.refuse(`${unknown[1].value}: this model has no class of this name.`);
    if (index !== undefined && index === other) return this.refuse(`${this.against.value}: choose another class than the one that the map is about.`);
    const first = index === undefined ? {} : { class: index };
    if (isBest) this.hooks.choose({ ...first, margin: true });
    else if (other !== undefined) this.hooks.choose({ ...first, against: other });
    else this.hooks.choose(index ?? null);
  }

  choosePatch() {
    const found = /^\s*(\d{1,4})\s*[,; ]\s*(\d{1,4})\s*$/.exec(this.patch.value), like = this.value?.like ? { like: this.value.like } : {};
    if (found) this.hooks.choose({ ...like, patch: [Number(found[1]), Number(found[2])] });
    else if (this.patch.value.trim()) this.refuse(`${this.patch.value}: expected a row and a column of patches, such as 3, 5.`);
    else this.hooks.choose(like.like ? like : null);
  }

  /** Say why a text is not taken; the fields say again what is chosen. */
  refuse(reason) {
    this.hooks.failed(reason);
    this.show(this.value, true);
  }

  /** Say what is chosen; what is being written stays, unless it was refused. */
  show(value, isRefused = false) {
    this.value = value ?? null;
    const write = (input, text) => { if (input && (isRefused || document.activeElement !== input)) input.value = text; };
    const labelled = (index) => (typeof index === "number" ? labelOf(this.model, index) : "");
    write(this.target, labelled(typeof value === "number" ? value : value?.class));
    write(this.against, value?.margin ? BEST_OTHER : labelled(value?.against));
    write(this.words, value?.text ?? "");
    write(this.patch, value?.patch ? value.patch.join(", ") : "");
    const like = value?.like, own = [...this.liked].map(([id, { name, url }]) => ({ id, name, url }));
    const offered = [...this.examples.map(({ id, caption, name, url }) => ({ id, name: caption ?? name, url })), ...own];
    if (like && !offered.some(({ id }) => id === like)) offered.push({ id: like, name: "the picture of this link" });
    const made = offered.map(({ id }) => id).join();
    if (this.pictures.dataset.made !== made) {
      this.pictures.dataset.made = made;
      this.pictures.replaceChildren(...offered.map(({ id, name, url }) => this.picture(id, name, url)));
    }
    for (const button of this.pictures.children) button.setAttribute("aria-pressed", button.dataset.like === like);
    if (like || value?.patch) this.likeness.open = true;
  }
}
