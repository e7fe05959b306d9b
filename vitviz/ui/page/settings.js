// What the page begins with.

import { SavedBackend, ServerBackend } from "./backend.js";

export const START = JSON.parse(document.getElementById("start").textContent);
// A page that was saved as one file has its own answers.
export const backend = START.files ? new SavedBackend(START) : new ServerBackend();
export const SETTINGS = START.settings;
export const METHODS = Object.fromEntries(SETTINGS.methods.map((method) => [method.name, method]));
export const PROBES = Object.fromEntries(SETTINGS.probes.map((probe) => [probe.name, probe]));
// By name; the name of the automatic scale is empty.
export const SCALES = Object.fromEntries(SETTINGS.scales.map((scale) => [scale.name ?? "", scale]));
