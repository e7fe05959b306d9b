// The target of a map (classes, a text or a likeness) as one field of controls.

import { classNamed, labelOf } from "./class_names.js";
import { create, createButton, labelled, newId } from "./dom.js";
import { notify } from "./messages.js";
import { likedPictures } from "./page.js";
import { backend, SETTINGS } from "./settings.js";
import { likePicture } from "./uploads.js";

const BEST_OTHER = "the best of the others";

export class TargetField {
  /**
   * @param {any} choose receives the target
   * @param {Model} model
   */
  constructor(model, choose) {
    this.model = model;
    this.choose = choose;
    /** @type {any} */
    this.value = null;
    /** @type {Record<string, any>} */
    this.fields = {};
    this.parts = [...(model.labels.length ? this.makeClasses() : []), ...(model.reads_text ? [this.makeWords()] : []),
      ...(backend.has("likeness") ? [this.makeLikeness()] : [])];
  }

  makeClasses() {
    const options = () => this.model.labels.map((_, classIndex) => new Option(labelOf(this.model, classIndex)));
    const list = create("datalist", { id: newId() }, ...options());
    const againstList = create("datalist", { id: newId() }, new Option(BEST_OTHER), ...options());
    this.fields.target = this.textInput("vx-target", "the most probable", list.id);
    this.fields.against = this.textInput("vx-against", "nothing", againstList.id);
    this.fields.target.onchange = this.fields.against.onchange = () => this.chooseClasses();
    return [labelled("Class", this.fields.target), labelled("Against", this.fields.against), list, againstList];
  }

  /**
   * @param {string} className
   * @param {string} placeholder
   * @param {string=} list
   */
  textInput(className, placeholder, list) {
    const input = create("input", { type: "text", className, placeholder, autocomplete: "off" });
    if (list) input.setAttribute("list", list);
    return input;
  }

  makeWords() {
    this.fields.words = this.textInput("vx-words", "a photo of a cat, and Enter");
    this.fields.words.maxLength = SETTINGS.max_text_chars;
    this.fields.words.onchange = () => this.choose(this.fields.words.value.trim() ? { text: this.fields.words.value.trim() } : null);
    return labelled("In words", this.fields.words);
  }

  makeLikeness() {
    const file = create("input", {
      type: "file",
      accept: "image/*,.tif,.tiff,.heic,.heif",
      className: "vx-like-file",
      "aria-label": "Upload a picture to compare with",
    });
    file.onchange = () => {
      if (file.files?.length) likePicture(file.files[0]);
      file.value = "";
    };
    const label = create("label", { className: "vx-button" }, "Another picture …", file),
      summary = create("summary", { textContent: "Like a picture" });
    this.fields.pictures = create("div", { className: "vx-examples vx-like", role: "group", "aria-label": "Pictures to compare with" });
    this.fields.patch = this.textInput("vx-like-patch", "row, column");
    this.fields.patch.title = "What is like this patch, of the picture chosen above, or of this one where none is chosen";
    this.fields.patch.onchange = () => this.choosePatch();
    // Without other kinds of targets, it is open from the start.
    const open = !this.model.labels.length && !this.model.reads_text;
    this.fields.likeness = create(
      "details",
      { className: "vx-likeness", open },
      summary,
      this.fields.pictures,
      label,
      labelled("Only its patch", this.fields.patch),
    );
    return this.fields.likeness;
  }

  /**
   * @param {any} id
   * @param {string} name
   * @param {any} url
   */
  picture(id, name, url) {
    const onclick = () => this.choose(this.value?.like === id ? null : { like: id });
    const content = url ? create("img", { src: url, alt: "", loading: "lazy" }) : name;
    return createButton({ title: name, onclick, dataset: { like: id }, "aria-label": `Like ${name}` }, content);
  }

  /**
   * The index of a class by its name or its number; undefined for an empty input, null for none or several classes.
   * @param {any} input
   */
  indexOf(input) {
    const text = input.value.trim();
    return text ? classNamed(this.model, text) : undefined;
  }

  chooseClasses() {
    const isBest = this.fields.against.value.trim().toLowerCase() === BEST_OTHER;
    const classIndex = this.indexOf(this.fields.target), againstIndex = isBest ? undefined : this.indexOf(this.fields.against);
    const unknownClass = [[classIndex, this.fields.target], [againstIndex, this.fields.against]].find(([match]) => match === null);
    if (unknownClass) return this.refuse(`${unknownClass[1].value}: this model has no class of this name, or several.`);
    if (classIndex !== undefined && classIndex === againstIndex)
      return this.refuse(`${this.fields.against.value}: choose another class than the one that the map is about.`);
    const classField = classIndex === undefined ? {} : { class: classIndex };
    if (isBest) this.choose({ ...classField, margin: true });
    else if (againstIndex !== undefined) this.choose({ ...classField, against: againstIndex });
    else this.choose(classIndex ?? null);
  }

  choosePatch() {
    const match = /^\s*(\d{1,4})\s*[,; ]\s*(\d{1,4})\s*$/.exec(this.fields.patch.value),
      like = this.value?.like ? { like: this.value.like } : {};
    if (match) this.choose({ ...like, patch: [Number(match[1]), Number(match[2])] });
    else if (this.fields.patch.value.trim())
      this.refuse(`${this.fields.patch.value}: expected a row and a column of patches, such as 3, 5.`);
    else this.choose(like.like ? like : null);
  }

  /**
   * Show why a text is refused, and reset the fields.
   * @param {any} reason
   */
  refuse(reason) {
    notify(reason);
    this.show(this.value, true);
  }

  /**
   * Show a target; a field with the focus keeps its text, unless it was refused.
   * @param {any} value
   * @param {any=} isRefused
   */
  show(value, isRefused = false) {
    this.value = value ?? null;
    const write = (/** @type {any} */ input, /** @type {string} */ text) => {
      if (input && (isRefused || document.activeElement !== input)) input.value = text;
    };
    const classLabel = (/** @type {number} */ classIndex) => (typeof classIndex === "number" ? labelOf(this.model, classIndex) : "");
    write(this.fields.target, classLabel(typeof value === "number" ? value : value?.class));
    write(this.fields.against, value?.margin ? BEST_OTHER : classLabel(value?.against));
    write(this.fields.words, value?.text ?? "");
    write(this.fields.patch, value?.patch ? value.patch.join(", ") : "");
    if (!this.fields.pictures) return;
    const like = value?.like, uploaded = [...likedPictures].map(([id, { name, url }]) => ({ id, name, url }));
    const pictures = [...SETTINGS.examples.map(({ id, caption, name, url }) => ({ id, name: caption ?? name, url })), ...uploaded];
    if (like && !pictures.some(({ id }) => id === like)) pictures.push({ id: like, name: "the picture of this link", url: "" });
    const key = pictures.map(({ id }) => id).join();
    if (this.fields.pictures.dataset.made !== key) {
      this.fields.pictures.dataset.made = key;
      this.fields.pictures.replaceChildren(...pictures.map(({ id, name, url }) => this.picture(id, name, url)));
    }
    for (const button of this.fields.pictures.children) button.setAttribute("aria-pressed", button.dataset.like === like);
    if (like || value?.patch) this.fields.likeness.open = true;
  }
}
