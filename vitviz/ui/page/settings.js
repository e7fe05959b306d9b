// What the page begins with.

import { SavedBackend, ServerBackend } from "./backend.js";
import { DeviceBackend } from "./device/device_backend.js";

/** @type {Start} */
export const START = JSON.parse(document.getElementById("start")?.textContent ?? "");
/**
 * The source of the page's answers: the app, the network on this device, or a saved file, which is asked for files and maps only.
 * @type {Backend}
 */
export const backend = makeBackend(START);

/**
 * @param {Start} start
 * @returns {any}
 */
function makeBackend({ device, files, maps }) {
  if (device) return new DeviceBackend({ ...START, device });
  return files ? new SavedBackend(files, maps ?? []) : new ServerBackend();
}
export const SETTINGS = START.settings;
export const METHODS = Object.fromEntries(SETTINGS.methods.map((method) => [method.name, method]));
export const PROBES = Object.fromEntries(SETTINGS.probes.map((probe) => [probe.name, probe]));
// By name; the name of the automatic scale is empty.
export const SCALES = Object.fromEntries(SETTINGS.scales.map((scale) => [scale.name ?? "", scale]));
