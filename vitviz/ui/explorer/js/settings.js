// What the server tells the page once. `element`, `props`, `server`, `trigger`, `watch` and `upload` are Gradio's.

const SETTINGS = props.settings;
const METHODS = Object.fromEntries(SETTINGS.methods.map((method) => [method.name, method]));
// A page that was saved as one file has no server.
const OFFLINE = Boolean(SETTINGS.offline);
