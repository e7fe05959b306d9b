// What the page begins with.

const element = document.getElementById("vv-explorer"), START = JSON.parse(document.getElementById("start").textContent);
// A page that was saved as one file has no server.
const OFFLINE = Boolean(START.files);
const backend = OFFLINE ? new SavedBackend(START) : new ServerBackend();
const SETTINGS = START.settings;
// The methods of the maps that a saved file has.
const SAVED_METHODS = new Set(Object.keys(START.maps ?? {}).map((name) => JSON.parse(name.slice("map ".length))[0]));
const METHODS = Object.fromEntries(SETTINGS.methods.map((method) => [method.name, method]));
const PROBES = Object.fromEntries(SETTINGS.probes.map((probe) => [probe.name, probe]));
// By name; the name of the automatic scale is empty.
const SCALES = Object.fromEntries(SETTINGS.scales.map((scale) => [scale.name ?? "", scale]));
