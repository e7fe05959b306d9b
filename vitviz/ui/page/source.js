// Picture, model, the model's input settings, and its predictions.

import { chooseInput, chooseModel, choosePicture, chooseStep } from "./choices.js";
import { showAnswer } from "./answer.js";
import { contextOf, create, createButton, createCanvas, find, findAll, listenTo } from "./dom.js";
import { asPng } from "./files.js";
import { notify, notifyToo } from "./messages.js";
import { page, store } from "./page.js";
import { showPlace } from "./places.js";
import { showPredictions } from "./predictions.js";
import { backend, SETTINGS } from "./settings.js";
import { openOwn, takeFiles, takePicture } from "./uploads.js";

const MAX_LISTED_CLASSES = 20, BY_NAME = new Intl.Collator("en");
// The fit that keeps the whole picture and its shape.
const UNCROPPED_FIT = "native";

export class Source {
  constructor() {
    /** @type {any} */
    this.model = null;
    /** @type {Facts | null} */
    this.offeredFacts = null;
    /** @type {any} */
    this.clip = null;
    for (const input of findAll(".vx-file")) input.onchange = () => {
      if (input.files.length) takeFiles([...input.files]);
      input.value = "";
    };
    for (const holder of findAll(".vx-examples")) holder.replaceChildren(...SETTINGS.examples.map((example) => this.example(example)));
    this.takeDrops();
    this.takePictures();
    this.offerModels();
    find("fit").replaceChildren(...SETTINGS.fits.map(({ name, title }) => new Option(title, name)));
    listenTo("change", {
      fit: ({ target }) => chooseInput({ fit: target.value }),
      resolution: ({ target }) => chooseInput({ resolution: resolutionOf(target.value) }),
      pixels: ({ target }) => target.value && chooseInput({ resolution: Number(target.value) }),
      white: ({ target }) => store.patchView(page.active, { white: Number(target.value) || null }),
      "stored-colours": ({ target }) => {
        const choice = target.checked ? "ignore" : "apply";
        store.patchView(page.active, { color_profile: choice === this.model.color_profile ? null : choice });
      },
      step: ({ target }) => chooseStep(this.model.steps[Number(target.value)]),
    });
    listenTo("input", {
      "clip-frame": ({ target }) => store.patchView(page.active, { frame: Number(target.value) }),
      step: ({ target }) => this.sayStep(this.model.steps[Number(target.value)]),
      search: ({ target }) => this.filterModels(target.value.trim().toLowerCase()),
    });
  }

  /** @param {any} options */
  example({ id, url, name, caption }) {
    const title = caption ?? name, image = create("img", { src: url, alt: "", loading: "lazy" });
    return createButton({ title, onclick: () => choosePicture(id), "aria-label": `Example: ${title}`, dataset: { example: id } }, image);
  }

  takeDrops() {
    const take = async (/** @type {DataTransfer | null} */ transfer) => {
      const folder = [...transfer?.items ?? []].map((item) => item.webkitGetAsEntry?.()).find((entry) => entry?.isDirectory);
      if (folder) return takeFiles(await filesOf(/** @type {FileSystemDirectoryEntry} */ (folder)), folder.name);
      if (transfer?.files.length) return takeFiles([...transfer.files]);
      if (/^https?:/.test(transfer?.getData("text/uri-list") || transfer?.getData("text/plain") || ""))
        notify("That is an address, which this page does not fetch: save the picture, and drop its file.");
    };
    document.addEventListener("dragover", (event) => event.preventDefault());
    document.addEventListener("drop", (event) => {
      event.preventDefault();
      take(event.dataTransfer);
    });
    document.addEventListener("paste", (event) => {
      if (!(event.target instanceof HTMLInputElement)) take(event.clipboardData);
    });
  }

  takePictures() {
    const dialog = find("shot"), video = dialog.querySelector("video");
    dialog.onclose = () => {
      for (const track of video.srcObject.getTracks()) track.stop();
      video.srcObject = null;
    };
    listenTo("click", {
      camera: async () => {
        if (!navigator.mediaDevices)
          return notify("Browsers offer the camera only to pages over https or on this machine: open the page so, or upload a picture.");
        try {
          video.srcObject = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
          dialog.showModal();
        } catch (/** @type {any} */ error) {
          notify(`The camera cannot be used: ${error.message}`);
        }
      },
      shoot: async () => {
        const canvas = createCanvas(video.videoWidth, video.videoHeight);
        contextOf(canvas).drawImage(video, 0, 0);
        dialog.close();
        takePicture(new File([await asPng(canvas)], "camera.png", { type: "image/png" }));
      },
      "shot-close": () => dialog.close(),
    });
  }

  offerModels() {
    const { models, opens_any: opensAny, overrides } = SETTINGS;
    find("search").hidden = models.length < 8;
    const families = [...new Set(models.map(({ family }) => family))];
    find("menu").replaceChildren(...families.map((family) => {
      const members = models.filter((item) => item.family === family).map((item) => this.modelChoice(item));
      return create("div", {}, create("h2", { textContent: family }), ...members);
    }));
    find("own").hidden = !opensAny;
    find("own-hint").textContent = `Only where a message asks for it: ${overrides.join(", ")}`;
    // The latest choice counts.
    for (const [one, other] of [["own-files", "own-folder"], ["own-folder", "own-files"]]) find(one).onchange = () => {
      find(other).value = "";
      const { files, folder } = chosenFolder();
      find("own-chosen").textContent = folder ?? (files.map(({ name }) => name).join(", ") || "none chosen");
    };
    find("own-open").onclick = () => openOwn({
      ...chosenFolder(), hub: find("own-hub").value, overrides: find("own-overrides").value,
    });
  }

  /** @param {any} options */
  modelChoice({ id, title, megabytes }) {
    const cost = megabytes ? `downloads ${Math.round(megabytes).toLocaleString("en")} MB` : "ready";
    return createButton({ onclick: () => chooseModel(id), dataset: { model: id } }, title, create("span", { textContent: cost }));
  }

  /** @param {string} text */
  filterModels(text) {
    for (const group of find("menu").children) {
      for (const button of group.querySelectorAll("button")) {
        const words = `${button.textContent} ${button.dataset.model} ${group.firstElementChild.textContent}`;
        button.hidden = !words.toLowerCase().includes(text);
      }
    }
  }

  /**
   * Show a view, with its facts and model, which are null until they are loaded.
   * @param {View} view
   * @param {Facts | null} facts
   * @param {Model | null} model
   */
  show(view, facts, model) {
    for (const button of findAll("[data-example]")) button.setAttribute("aria-pressed", button.dataset.example === view.picture);
    for (const button of find("menu").querySelectorAll("button")) button.setAttribute("aria-pressed", button.dataset.model === view.model);
    const listed = SETTINGS.models.find(({ id }) => id === view.model);
    find("model-name").textContent = listed?.title ?? model?.title ?? view.model.replace(/^hf:/, "").replace(/^own:.*/, "not here");
    this.showFrame(view, facts);
    showPlace(view);
    if (!facts || !model) return;
    if (this.model !== model) this.showModel(model);
    find("fit").value = view.fit ?? model.fit;
    const isListed = model.resolutions.some(({ value }) => value === view.resolution);
    find("resolution").value = isListed || view.resolution === null ? String(view.resolution) : "";
    find("pixels").value = typeof view.resolution === "number" ? view.resolution : "";
    find("pixels").step = model.patch[0];
    find("white").value = view.white ?? "";
    find("stored-colours").checked = (view.color_profile ?? model.color_profile) === "ignore";
    find("stored").hidden = !facts.is_converted && !find("stored-colours").checked;
    const fitted = SETTINGS.fits.find(({ name }) => name === find("fit").value)?.title;
    const { rows, columns } = facts, [high, wide] = model.patch;
    const trained = facts.resolution === model.trained_resolution ? "" : ` (trained at ${model.trained_resolution})`;
    const isReduced = model.detail && model.detail ** 2 < rows * high * columns * wide;
    const sharpness = isReduced ? `, no sharper than ${model.detail}×${model.detail}` : "";
    find("seen-as").textContent =
      `${fitted}, ${rows * high}×${columns * wide} pixels${trained}${sharpness}: ${rows}×${columns} patches of ${high}×${wide} pixels`;
    find("steps").hidden = !model.steps;
    if (model.steps) {
      const step = view.step ?? model.steps.at(-1) ?? 0;
      Object.assign(find("step"), { max: model.steps.length - 1, value: model.steps.indexOf(step) });
      this.sayStep(step);
    }
    find("picture-assumptions").textContent = facts.assumptions && `About the picture: ${facts.assumptions}.`;
    find("engine").textContent = facts.engine ? `Computed on this device, by ${facts.engine}.` : "";
    if (this.offeredFacts !== facts) {
      this.offerWhole(facts);
      this.offerWhite(facts);
    }
    this.offeredFacts = facts;
    showAnswer();
    showPredictions();
  }

  /**
   * Which frame of a clip is wanted; while another frame is on its way, the clip is the one before.
   * @param {any} options
   * @param {Facts | null} facts
   */
  showFrame({ frame, picture }, facts) {
    if (facts) this.clip = facts.clip && { ...facts.clip, picture };
    const { clip } = this, isClip = backend.computes && !!clip && clip.picture === picture && frame !== null;
    find("clip").hidden = !isClip;
    findAll("[data-act=video]")[0].hidden = !isClip;
    if (!isClip) return;
    Object.assign(find("clip-frame"), { max: clip.frames - 1, value: frame });
    find("frame-said").textContent = `${frame.toLocaleString("en")} of 0–${(clip.frames - 1).toLocaleString("en")}`;
  }

  /**
   * What a crop hides is dimmed; where that is most of the picture, all of it is a click away.
   * @param {Facts} facts
   */
  offerWhole({ fit, box: [left, top, right, bottom], width, height }) {
    const across = Math.min(right, width) - Math.max(left, 0), down = Math.min(bottom, height) - Math.max(top, 0);
    const share = Math.max(0, across) * Math.max(0, down) / (width * height);
    if (!backend.computes || fit !== "crop" || share >= SETTINGS.least_seen) return;
    const whole = { label: "Show the whole picture", act: () => chooseInput({ fit: UNCROPPED_FIT }) };
    notifyToo(`The model sees the middle ${Math.round(100 * share)}% of this picture: the rest is cropped.`, [whole]);
  }

  /**
   * A dark picture may have another value of white than its kind of file.
   * @param {Facts} facts
   */
  offerWhite({ dark, name }) {
    if (!backend.computes || !dark) return;
    const white = /** @type {number} */ (dark.white), label = `Read ${white?.toLocaleString("en")} as white`;
    const brighter = { label, act: () => store.patchView(page.active, { white }) };
    notifyToo(`${name}: ${dark.text}.`, dark.white === null ? [] : [brighter]);
  }

  /** @param {number} step */
  sayStep(step) {
    find("steps").querySelector("span").textContent = `${step.toLocaleString("en")} of ${this.model.steps.at(-1).toLocaleString("en")}`;
  }

  /** @param {Model} model */
  showModel(model) {
    this.model = model;
    const options = model.resolutions.map(({ title, value }) => new Option(title, String(value)));
    find("resolution").replaceChildren(new Option("another", ""), ...options);
    find("predictions-part").hidden = !model.labels.length;
    const { labels } = model,
      isLong = labels.length > MAX_LISTED_CLASSES,
      count = labels.length.toLocaleString("en"),
      all = find("all-classes");
    // Some labels list synonyms.
    const names = labels.map((label) => label.split(",")[0]);
    find("classes").textContent = isLong
      ? `This model knows ${count} classes and no others: ${names.slice(0, 6).join(", ")}, … All are listed below.`
      : labels.length ? `This model knows only: ${labels.join(", ")}.` : "This model names no classes.";
    all.hidden = !isLong;
    all.querySelector("summary").textContent = `All ${count} classes`;
    all.querySelector("p").textContent = isLong ? `${names.sort(BY_NAME.compare).join(", ")}.` : "";
    find("assumptions").textContent = model.assumptions;
    find("card").replaceChildren(
      ...model.card.flatMap(([name, value]) => [
        create("dt", { textContent: name }),
        create("dd", { textContent: value }),
      ]),
    );
  }
}

/**
 * The files of a checkpoint that were chosen, and the name of the folder that they lie in, if it was chosen.
 * @returns {{ files: File[], folder?: string }}
 */
function chosenFolder() {
  const files = [...find("own-folder").files].filter(({ webkitRelativePath: path }) => path.split("/").length === 2);
  return files.length ? { files, folder: files[0].webkitRelativePath.split("/")[0] } : { files: [...find("own-files").files] };
}

/**
 * The files that lie in a folder, without those of folders inside.
 * @param {FileSystemDirectoryEntry} folder
 * @returns {Promise<File[]>}
 */
async function filesOf(folder) {
  const reader = folder.createReader(), entries = [];
  // It reads some at a time, and at last none.
  for (let part = null; part === null || part.length; entries.push(...part))
    part = await new Promise((done, fail) => reader.readEntries(done, fail));
  const files = entries.filter((entry) => entry.isFile && !entry.name.startsWith("."));
  return Promise.all(files.map((entry) => new Promise((done, fail) => /** @type {FileSystemFileEntry} */ (entry).file(done, fail))));
}

/** @param {string} word "native", pixels, or another one for that of the model */
const resolutionOf = (word) => (word === "native" ? word : Number(word) || null);
