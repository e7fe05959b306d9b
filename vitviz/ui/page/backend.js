// Where the page's answers come from: the routes of the app, or the data of a saved file.

import { fromBase64, mapName } from "./packs.js";

// The pauses before a request that was lost on its way is sent again, in milliseconds. The server keeps a run for five
// seconds; after that it begins anew.
const RETRY_MS = [100, 200, 400, 800, 1600, 3200];
// A proxy whose server is about to answer again.
const AWAY = [502, 503, 504];

/**
 * The error of an answer that is none: `expired`, or `failed`, and `final` if it always will.
 * @param {any} options
 * @param {number} status
 */
const errorOf = ({ failed, detail, final, expired }, status) =>
  Object.assign(Error(failed ?? detail ?? (expired ? "expired" : `The server answers ${status}`)), { expired, final });

export class ServerBackend {
  // Whether it computes what it is asked: maps, findings, other pictures.
  computes = true;

  constructor() {
    // The page's address may lack the slash at its end, below a proxy's path.
    this.base = location.pathname.endsWith("/") ? "" : `${location.pathname.split("/").at(-1)}/`;
  }

  /**
   * Whether it has a part of the page; the parts name what they need as `data-needs`.
   * @param {string} feature
   */
  has(feature) {
    return feature !== "device";
  }

  /**
   * Say what is loaded before it answers; of an app, nothing is.
   * @param {(step: Progress | null) => void} show
   */
  watchLoading(show) {}

  /**
   * Whether it has maps of a method.
   * @param {string} method
   */
  offers(method) {
    return true;
  }

  /**
   * The address of a picture.
   * @param {string} path
   */
  address(path) {
    return /^(data|blob):/.test(path) ? path : this.base + path;
  }

  /**
   * @param {string} path
   * @param {RequestInit=} options
   */
  async fetch(path, options) {
    const response = await fetch(this.base + path, options).catch(() => { throw Error("The server does not answer"); });
    if (AWAY.includes(response.status)) throw Error(`The server answers ${response.status}`);
    if (!response.ok) throw errorOf(await response.json().catch(() => ({})), response.status);
    return response;
  }

  /**
   * @param {string} path
   * @param {any} value
   */
  post(path, value) {
    return this.fetch(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(value) });
  }

  /**
   * An uploaded file: its path and name, and the name that a picture has in states.
   * @param {any} file
   */
  async upload(file) {
    const response = await this.fetch(`upload?name=${encodeURIComponent(file.name)}`, {
      method: "POST",
      headers: { "Content-Type": "application/octet-stream" },
      body: file,
    });
    return { ...(await response.json()), orig_name: file.name };
  }

  /**
   * A file of an analysis.
   * @param {string} uid
   * @param {string} name
   */
  async file(uid, name) {
    return (await this.fetch(`files/${uid}/${encodeURIComponent(name)}`)).arrayBuffer();
  }

  /**
   * A file that a run has made.
   * @param {string} address
   */
  async made(address) {
    return (await this.fetch(address)).arrayBuffer();
  }

  /**
   * The file of a map that takes little time.
   * @param {any} body
   */
  async map(body) {
    return (await this.post("map", body)).arrayBuffer();
  }

  /** @param {any} body */
  async describe(body) {
    return (await this.post("describe", body)).json();
  }

  /**
   * The reply to a request that takes long; if the connection is lost, the same request reads on.
   * @param {any} request
   * @param {(step: Progress) => void} showProgress
   */
  async run(request, showProgress) {
    for (const pause of [...RETRY_MS, null]) {
      try {
        const { body } = await this.post("run", request),
          reader = /** @type {ReadableStream} */ (body).pipeThrough(new TextDecoderStream()).getReader();
        let reply = null;
        for (let text = "", chunk = await reader.read(); !chunk.done; chunk = await reader.read()) {
          const lines = (text + chunk.value).split("\n");
          text = lines.pop() ?? "";
          for (const line of lines.map((each) => JSON.parse(each))) {
            if (line.reply) ({ reply } = line);
            else showProgress(line);
          }
        }
        if (reply) return reply;
      } catch (thrown) {
        const error = /** @type {RequestError} */ (thrown);
        if ("final" in error) return { failed: error.message, final: error.final };
      }
      if (pause !== null) await new Promise((done) => setTimeout(done, pause));
    }
    return { failed: "The server does not answer" };
  }

  /**
   * End a run; without a number, all runs of a page that closes.
   * @param {any} body
   */
  end(body) {
    navigator.sendBeacon(`${this.base}end`, new Blob([JSON.stringify(body)], { type: "application/json" }));
  }
}

/** The data of a saved file: the files of one analysis, and the maps that were shown. */
export class SavedBackend {
  computes = false;

  /**
   * @param {Record<string, string>} files by their names, in base64
   * @param {(MapRequest & { content: string })[]} maps
   */
  constructor(files, maps) {
    this.files = files;
    this.maps = new Map(maps.map(({ method, parameters, content }) => [mapName(method, parameters), content]));
    this.methods = new Set(maps.map(({ method }) => method));
  }

  /** @param {string} feature */
  has(feature) {
    return feature === "alike" && "features" in this.files;
  }

  watchLoading() {}

  /** @param {string} method */
  offers(method) {
    return this.methods.has(method);
  }

  /** @param {string} path */
  address(path) {
    return path;
  }

  /**
   * @param {string} uid
   * @param {string} name
   */
  async file(uid, name) {
    // Of the second picture, there are features alone.
    return bytesOrThrow(this.files[`${uid} features` in this.files ? `${uid} ${name}` : name], name);
  }

  /** @param {any} options */
  async map({ method, parameters }) {
    return bytesOrThrow(this.maps.get(mapName(method, parameters)), "A map that only the app computes");
  }
}

/**
 * @param {string | undefined} content
 * @param {string} name
 */
function bytesOrThrow(content, name) {
  if (!content) throw Error(`${name} is not in this file`);
  return fromBase64(content).buffer;
}
