// What the server tells the page once. `element`, `props`, `server`, `trigger`, `watch` and `upload` are Gradio's.

const SETTINGS = JSON.parse(props.settings);
const METHODS = Object.fromEntries(SETTINGS.methods.map((method) => [method.name, method]));
const PROBES = Object.fromEntries(SETTINGS.probes.map((probe) => [probe.name, probe]));
// By name; the automatic choice has none.
const SCALES = Object.fromEntries(SETTINGS.scales.map((scale) => [scale.name ?? "", scale]));
// A page that was saved as one file has no server.
const OFFLINE = Boolean(SETTINGS.offline);

// Where the server's files are: before the path of one in an address.
let filesAddress = "";

/** The address of a file, by what Gradio says of it; a reply that came by itself has only the path. */
function addressOfFile({ path, url }) {
  if (url?.includes("file=")) filesAddress = url.slice(0, url.indexOf("file=") + 5);
  return url ?? filesAddress + path;
}
