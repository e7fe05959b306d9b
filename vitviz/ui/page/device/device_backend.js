// The third source of the page's answers: the network itself, on the visitor's device. Nothing is sent anywhere.

import { defaultOf } from "../defaults.js";
import { asBase64, fromBase64 } from "../packs.js";
import { CLASS_MAPS, classMapFile } from "./class_maps.js";
import { deviceFacts } from "./device_facts.js";
import { patchContrasts } from "./far_look.js";
import { foundFlip } from "./flip.js";
import { legalView } from "./legal_view.js";
import { Networks } from "./networks.js";
import { Parts } from "./parts.js";
import { rankedHeads, switchedOff } from "./studies.js";
import { writePack } from "./pack_writer.js";
import { openWorker } from "./worker_client.js";

// The analysis that the page begins with.
const FIRST = "page";
// An earlier one is computed again, which takes as long as a picture.
const MAX_KEPT_ANALYSES = 4;

/** @typedef {{ name: string, content: Blob | null, part?: string }} DevicePicture */
/** @typedef {{ model: string, picture: string, pixels: Float32Array, logits: Float32Array, facts: Facts }} DeviceAnalysis */

export class DeviceBackend {
  computes = true;

  /** @param {Start & { device: DeviceStart }} start */
  constructor({ settings, state, views, models, files, device }) {
    this.settings = settings;
    this.models = models;
    this.files = files ?? {};
    this.firstView = state.views[0];
    this.firstFacts = views[0];
    this.device = device;
    this.parts = new Parts(device.folder);
    this.networks = new Networks(device.models, this.parts);
    /** @type {Map<string, DevicePicture>} */
    this.pictures = new Map(Object.entries(device.pictures).map(([id, picture]) => [id, { ...picture, content: null }]));
    /** @type {Map<string, Promise<DeviceAnalysis>>} */
    this.analyses = new Map();
    /** @type {Map<string, ArrayBuffer>} */
    this.findings = new Map();
    // By the page and number of each run.
    /** @type {Map<string, AbortController>} */
    this.running = new Map();
    this.count = 0;
    /** @type {Promise<ReturnType<typeof openWorker>> | null} */
    this.worker = null;
  }

  /** @param {string} feature */
  has(feature) {
    return feature === "device" || feature === "alike";
  }

  /**
   * Say what is loaded: the progress of weights, and null at their end.
   * @param {(step: Progress | null) => void} show
   */
  watchLoading(show) {
    this.networks.onLoading = show;
  }

  /** Every method of its page: others are not there. */
  offers() {
    return true;
  }

  /** @param {string} path */
  address(path) {
    return path;
  }

  /**
   * The answer of the worker for pictures and their attention.
   * @param {string} kind
   * @param {any} request
   * @param {Transferable[]} moved
   */
  async ask(kind, request, moved = []) {
    if (!this.worker) {
      this.worker = this.parts.text("analysis_worker.js").then(openWorker);
      // One that cannot be fetched is tried again.
      this.worker.catch(() => { this.worker = null; });
    }
    return (await this.worker)(kind, request, moved);
  }

  // ---- pictures ----

  /**
   * Keep a visitor's file, under an id that states have for it.
   * @param {File} file
   */
  async upload(file) {
    const id = `picture:${++this.count}`;
    this.pictures.set(id, { name: file.name, content: file });
    return { picture: id };
  }

  /** @param {string} id */
  async pictureOf(id) {
    const picture = this.pictures.get(id);
    if (!picture) throw Error("This picture is no longer there: drop it here again");
    picture.content ??= new Blob([await this.parts.read(picture.part ?? "")]);
    return { name: picture.name, content: picture.content };
  }

  // ---- analyses ----

  /**
   * The analysis of an id; that of the page's first picture is computed once somebody asks about it.
   * @param {string} uid
   */
  analysis(uid) {
    const known = this.analyses.get(uid);
    if (!known && uid === FIRST) return this.analyse(FIRST, this.firstView);
    if (!known) throw Object.assign(Error("expired"), { expired: true });
    // The one that was asked about last is forgotten last.
    this.analyses.delete(uid);
    this.analyses.set(uid, known);
    return known;
  }

  /**
   * Run the network of a view on its picture, under an id.
   * @param {string} uid
   * @param {View} view
   * @param {AbortSignal=} signal
   */
  analyse(uid, view, signal) {
    const analysis = this.computed(uid, view, signal);
    this.analyses.set(uid, analysis);
    analysis.catch(() => this.analyses.delete(uid));
    const [oldest] = this.analyses.keys();
    if (this.analyses.size > MAX_KEPT_ANALYSES) {
      this.analyses.delete(oldest);
      this.ask("forget", { uid: oldest });
    }
    return analysis;
  }

  /**
   * @param {string} uid
   * @param {View} view
   * @param {AbortSignal=} signal
   * @returns {Promise<DeviceAnalysis>}
   */
  async computed(uid, view, signal) {
    const { name, content } = await this.pictureOf(view.picture), { file, team } = await this.networks.get(view.model);
    const { preprocessing, config, input } = file, fit = view.fit ?? preprocessing.fit;
    const bitmap = await decoded(content, name, preprocessing.color_profile);
    const prepared = await this.ask("prepare", { bitmap, preprocessing, fit, side: this.device.shown_side }, [bitmap]);
    const encoding = await team.encode(prepared.pixels, { signal }), { logits } = encoding;
    const shape = {
      layers: config.depth, heads: config.heads, dim: config.head_width, scale: input.scale,
      prefix: input.prefix, rows: input.rows, columns: input.columns,
    };
    const { queries, keys, logSums, norms, pooled } = encoding;
    const contrast = patchContrasts(prepared.pixels, { ...shape, height: config.patch_height, width: config.patch_width });
    const trace = { uid, shape, contrast, encoding: { queries, keys, logSums, norms, pooled } };
    const found = await this.ask("keep", trace, [queries, keys, logSums, norms].map(({ buffer }) => buffer));
    // Unlike the address of a blob, it leaves memory with the facts.
    const address = `data:image/jpeg;base64,${asBase64(await prepared.picture.arrayBuffer())}`;
    const { device } = this;
    const facts = deviceFacts({ uid, view, name, address, file, prepared, encoding, found, device });
    return { model: view.model, picture: view.picture, pixels: prepared.pixels, logits, facts };
  }

  /**
   * What studies need of an analysis.
   * @param {string} uid
   * @param {AbortSignal} signal
   */
  async studied(uid, signal) {
    const { model, pixels, logits } = await this.analysis(uid), network = await this.networks.get(model);
    return { network, pixels, logits, signal, labels: this.models[model].labels };
  }

  // ---- files and maps ----

  /**
   * A file of an analysis: of its attention, or its picture.
   * @param {string} uid
   * @param {string} name
   */
  async file(uid, name) {
    if (uid === FIRST && this.files[name]) return fromBase64(this.files[name]).buffer;
    const { picture } = await this.analysis(uid);
    if (name.startsWith("features")) return this.features(uid, name);
    if (name === "picture") return (await this.pictureOf(picture)).content.arrayBuffer();
    return this.ask("file", { uid, name });
  }

  /**
   * The patches after a layer, each of length 1, as `features_packs` of vitviz/ui/packs.py writes them, in 32 bits.
   * @param {string} uid
   * @param {string} name
   */
  async features(uid, name) {
    const { model, pixels } = await this.analysis(uid), { file: { config: { width }, input }, team } = await this.networks.get(model);
    const layer = Number(name.split(" ")[1] ?? this.device.models[model].alike_layer);
    const { tokens } = await team.encode(pixels, { layers: layer + 1 }), values = tokens.subarray(input.prefix.length * width);
    for (let start = 0; start < values.length; start += width) {
      const vector = values.subarray(start, start + width), length = Math.sqrt(vector.reduce((total, value) => total + value * value, 0));
      vector.forEach((value, channel) => { vector[channel] = value / (length || 1); });
    }
    return writePack({ vectors: { values, shape: [values.length / width, width] } }, { layer: String(layer) });
  }

  /** @param {{ uid: string } & MapRequest} request */
  async map({ uid, method, parameters }) {
    const { facts } = await this.analysis(uid);
    return this.ask("map", { uid, method, parameters: this.allParameters(method, parameters, facts) });
  }

  /**
   * Every parameter of a method with a value.
   * @param {string} method
   * @param {Record<string, any>} parameters
   * @param {Facts} facts
   */
  allParameters(method, parameters, facts) {
    return Object.fromEntries(this.method(method).parameters.map((record) =>
      [record.name, parameters[record.name] ?? defaultOf(record, facts)]));
  }

  /** @param {string} name */
  method(name) {
    const method = this.settings.methods.find((each) => each.name === name);
    if (!method) throw Error(`${name}: only the app computes this map`);
    return method;
  }

  /** @param {string} address */
  async made(address) {
    return /** @type {ArrayBuffer} */ (this.findings.get(address));
  }

  /**
   * The state, as far as it is legal for its analyses; it has no link and no Python.
   * @param {{ state: State, uids: string[] }} request
   */
  async describe({ state, uids }) {
    const legal = await Promise.all(state.views.map(async (view, index) => {
      const uid = uids[index] ?? uids[0], facts = uid === FIRST ? this.firstFacts : (await this.analysis(uid)).facts;
      return legalView(view, this.settings, facts, this.models[view.model]);
    }));
    const notes = [...new Set(legal.flatMap((each) => each.notes))];
    return { state: { ...state, views: legal.map(({ view }) => view) }, link: "", python: "", notes };
  }

  // ---- what takes long ----

  /**
   * @param {any} request with the kind of the run, and the page and the number by which it is ended
   * @param {(step: Progress) => void} showProgress
   */
  async run({ kind, page, number, ...request }, showProgress) {
    const controller = new AbortController(), { signal } = controller, id = `${page} ${number}`;
    this.running.set(id, controller);
    // Not everything ends early, such as a probe; but nobody waits for it any more.
    const end = new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason)));
    try {
      return await Promise.race([this.runs[kind](request, signal, (done, total, unfinished) =>
        showProgress({ text: "", done, total, unfinished })), end]);
    } catch (/** @type {any} */ error) {
      if (signal.aborted) return { stopped: true };
      return error.expired ? { expired: true } : { failed: error.message ?? String(error), final: error.isPassing ? undefined : true };
    } finally {
      this.running.delete(id);
    }
  }

  /** @param {{ page: string, number?: number }} run */
  end({ page, number }) {
    for (const [id, controller] of this.running) if (number === undefined || id === `${page} ${number}`) controller.abort(Error("Stopped"));
  }

  /**
   * `report` takes the steps that are done, and a file of the map so far.
   * @type {Record<string, (request: any, signal: AbortSignal, report: (done: number, total: number, unfinished?: ArrayBuffer) => void) =>
   *   Promise<any>>}
   */
  runs = {
    analyze: async ({ state, index }, signal) => {
      const view = state.views[index];
      const { facts } = await this.analyse(`analysis ${++this.count}`, view, signal), model = this.models[view.model];
      const legal = legalView(view, this.settings, facts, model);
      const views = state.views.map((/** @type {View} */ each, /** @type {number} */ at) => (at === index ? legal.view : each));
      return { state: { ...state, views }, views: [facts], models: {}, notes: legal.notes };
    },

    switch: async ({ uid, ...request }, signal) => switchedOff(await this.studied(uid, signal), request),

    flip: async ({ uid }, signal, report) => foundFlip(await this.studied(uid, signal), report),

    rank: async ({ uid, target }, signal, report) => rankedHeads(await this.studied(uid, signal), target, report),

    map: async ({ uid, method, parameters }, signal, report) => {
      if (!(method in CLASS_MAPS)) return { content: asBase64(await this.map({ uid, method, parameters })) };
      const studied = await this.studied(uid, signal), { facts } = await this.analysis(uid);
      return { content: asBase64(await classMapFile(studied, method, this.allParameters(method, parameters, facts), report)) };
    },

    probe: async ({ uid, probe }) => {
      await this.analysis(uid);
      const { file, ...found } = await this.ask("probe", { uid, probe }), address = `${uid} ${probe}`;
      this.findings.clear();
      this.findings.set(address, file);
      return { probe, ...found, address };
    },
  };
}

/**
 * A decoded picture, upright.
 * @param {Blob} content
 * @param {string} name
 * @param {string} colorProfile "ignore" for the colours that the file stores
 */
async function decoded(content, name, colorProfile) {
  try {
    return await createImageBitmap(content, { colorSpaceConversion: colorProfile === "ignore" ? "none" : "default" });
  } catch {
    // Of a drawing, only an element knows the size.
    const image = new Image();
    image.src = URL.createObjectURL(content);
    try {
      await image.decode();
      return await createImageBitmap(image);
    } catch {
      throw Error(`${name}: this browser cannot open it as a picture`);
    } finally {
      URL.revokeObjectURL(image.src);
    }
  }
}
