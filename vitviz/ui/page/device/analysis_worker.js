// The worker that prepares pictures, and answers questions about their attention, so that the page stays smooth.

import { farLookOf } from "./far_look.js";
import { DEVICE_PROBES } from "./findings.js";
import { writePack } from "./pack_writer.js";
import { preparePicture } from "./prepare.js";
import { outlierPatches, outlierSentence, outlierThreshold } from "./token_sets.js";
import { Trace } from "./trace.js";
import { mapFileOf, traceFile } from "./trace_files.js";

const QUALITY = 0.9;
/** @type {Map<string, Trace>} */
const traces = new Map();

/** @param {string} uid */
function traceOf(uid) {
  const trace = traces.get(uid);
  if (!trace) throw Object.assign(Error("expired"), { expired: true });
  return trace;
}

/**
 * The answers by their kinds.
 * @type {Record<string, (request: any) => any>}
 */
const ANSWERS = {
  // A decoded picture as the network's input, and as the page shows it, on white.
  async prepare({ bitmap, preprocessing, fit, side }) {
    const { width, height } = bitmap, context = contextOn(bitmap, width, height), image = context.getImageData(0, 0, width, height);
    // At once, not when memory is next cleared up.
    bitmap.close();
    // A canvas that is too large for the browser stays empty, without an error.
    if (image.data[3] !== 255) throw Error(`${width}×${height} pixels: this browser lets no page read so large a picture`);
    const { pixels, picture: { box } } = preparePicture(image, preprocessing, fit);
    const scale = Math.min(1, side / Math.max(width, height));
    const [across, down] = [width, height].map((each) => Math.round(each * scale) || 1);
    const { canvas } = scale < 1 ? contextOn(context.canvas, across, down) : context;
    const picture = await canvas.convertToBlob({ type: "image/jpeg", quality: QUALITY });
    for (const drawn of [context.canvas, canvas]) drawn.width = drawn.height = 0;
    return { pixels, box, pixelSize: [width, height], width: across, height: down, picture };
  },

  keep({ uid, shape, encoding, contrast }) {
    const trace = new Trace(shape, encoding);
    traces.set(uid, trace);
    const { prefix, columns } = trace.shape, patches = outlierPatches(trace).map((token) => token - prefix.length);
    return {
      patches: patches.map((patch) => [Math.floor(patch / columns), patch % columns]),
      sentence: outlierSentence(trace),
      threshold: outlierThreshold(trace),
      look: farLookOf(trace, contrast),
    };
  },

  forget: ({ uid }) => traces.delete(uid),

  file: ({ uid, name }) => traceFile(traceOf(uid), name),

  map: ({ uid, method, parameters }) => mapFileOf(traceOf(uid), method, parameters),

  probe({ uid, probe }) {
    const { measurements, ...found } = DEVICE_PROBES[probe](traceOf(uid));
    const about = Object.entries(measurements).map(([name, { axes, quantity, names = {}, is_flag = false }]) =>
      [name, JSON.stringify({ axes, quantity, names, indexes: null, is_flag })]);
    return { ...found, file: writePack(measurements, Object.fromEntries(about)) };
  },
};

/**
 * A picture drawn on white.
 * @param {CanvasImageSource} source
 * @param {number} width
 * @param {number} height
 */
function contextOn(source, width, height) {
  const context = /** @type {OffscreenCanvasRenderingContext2D} */ (
    new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true }));
  Object.assign(context, { fillStyle: "white", imageSmoothingQuality: "high" });
  context.fillRect(0, 0, width, height);
  context.drawImage(source, 0, 0, width, height);
  return context;
}

self.onmessage = async ({ data: { id, kind, ...request } }) => {
  const scope = /** @type {any} */ (self);
  try {
    const answer = await ANSWERS[kind](request), { pixels, file } = answer ?? {};
    const moved = [answer instanceof ArrayBuffer ? answer : null, pixels?.buffer, file].filter((each) => each instanceof ArrayBuffer);
    scope.postMessage({ id, answer }, moved);
  } catch (/** @type {any} */ error) {
    scope.postMessage({ id, failed: String(error.message ?? error), expired: Boolean(error.expired) });
  }
};
