// The settings, which the server sends once. `element`, `props`, `server`, `trigger`, `watch` and `upload` are Gradio's.

const SETTINGS = JSON.parse(props.settings);
const METHODS = Object.fromEntries(SETTINGS.methods.map((method) => [method.name, method]));
const PROBES = Object.fromEntries(SETTINGS.probes.map((probe) => [probe.name, probe]));
// By name; the name of the automatic scale is empty.
const SCALES = Object.fromEntries(SETTINGS.scales.map((scale) => [scale.name ?? "", scale]));
// A page that was saved as one file has no server.
const OFFLINE = Boolean(SETTINGS.offline);

// The part of a file's address before its path.
let filesAddress = "";

/** The address of a file that Gradio describes; a reply to `server.progress` has only the path. */
function addressOfFile({ path, url }) {
  if (url?.includes("file=")) filesAddress = url.slice(0, url.indexOf("file=") + 5);
  return url ?? filesAddress + path;
}
