// What the visitor gives the page: pictures, clips and checkpoints.

import { chooseModel, choosePicture, setParameter } from "./choices.js";
import { notify, notifyToo, retryOf, showBusy } from "./messages.js";
import { randomId } from "./numbers.js";
import { activeView, likedPictures, newPictures, requests, uploads } from "./page.js";
import { changePlace, isDeviceChosen, rememberPlace, serverRemedies } from "./places.js";
import { backend, SETTINGS } from "./settings.js";
import { hasParameter } from "./tokens.js";

// The file that was given last: one that was on its way longer does not take its place.
/** @type {File | null} */
let latestFile = null;

/**
 * Show a picture; false if this page does not, and a message unless another one is shown.
 * @param {File} file
 */
export async function takePicture(file) {
  // A link was opened, which the server shows.
  if (isDeviceChosen()) {
    await changePlace(file);
    return false;
  }
  latestFile = file;
  const uploaded = await uploadedPicture(file, takePicture);
  if (!uploaded || latestFile !== file) return false;
  newPictures.set(uploaded.picture, file);
  choosePicture(uploaded.picture);
  return true;
}

// Names of checkpoints; other files are pictures and clips, or the server says what they are.
const WEIGHTS = /\.(safetensors|pth|pt|bin|ckpt|npz|npy|index\.json)$/i;

/**
 * Open what was dropped, pasted or chosen anywhere on the page: a picture, a clip, or the files of a checkpoint.
 * @param {File[]} files
 * @param {string=} folder the name of the folder that they lie in
 */
export async function takeFiles(files, folder) {
  if (!files.length) return notify(`${folder ?? "What was dropped"}: no files are in it.`);
  if (files.some(({ name }) => WEIGHTS.test(name))) {
    if (!SETTINGS.opens_any)
      return notify(`${files[0].name}: this page opens no checkpoints of visitors; drop a picture.`, serverRemedies());
    return openOwn({ files, folder, hub: "", overrides: "" });
  }
  const file = files.find(({ type, name }) => type.startsWith("image/") || /\.(tiff?|hei[cf])$/i.test(name)) ?? files[0];
  if (await takePicture(file) && files.length > 1)
    notifyOnceShown(`${files.length} files were dropped: the page shows ${file.name}. For many, use “vitviz batch”.`);
}

/**
 * Say something about what was opened, once it is shown: until then, every change of the view takes messages away.
 * @param {string} text
 */
export async function notifyOnceShown(text) {
  let isShown = true;
  for (let next = requests.pending("analysis"); next; next = requests.pending("analysis"))
    await next.promise.catch(() => { isShown = false; });
  if (isShown) notifyToo(text);
}

/**
 * Upload a picture; null and a message if that fails.
 * @param {File} file
 * @param {(file: File) => void} retry
 */
async function uploadedPicture(file, retry) {
  notify("");
  const megabytes = (/** @type {number} */ bytes) => `${(bytes / 2 ** 20).toFixed(0)} MB`;
  const maxBytes = file.type.startsWith("video/")
    ? Math.min(SETTINGS.max_clip_bytes, SETTINGS.max_upload_bytes)
    : SETTINGS.max_upload_bytes;
  if (file.size > maxBytes) return notify(`${file.name}: ${megabytes(file.size)}; expected at most ${megabytes(maxBytes)}`) ?? null;
  showBusy("uploads", { text: "", done: 0, total: 1, slot: "upload" });
  try {
    return await backend.upload(file);
  } catch (/** @type {any} */ error) {
    return notify(`${file.name} could not be uploaded: ${error.message ?? error}`, [retryOf(() => retry(file))]) ?? null;
  } finally {
    showBusy("uploads", null);
  }
}

/**
 * Upload a picture and make likeness to it the target.
 * @param {File} file
 */
export async function likePicture(file) {
  if (isDeviceChosen()) {
    const send = () => {
      rememberPlace("server");
      likePicture(file);
    };
    return notify("Only the server compares two pictures, and yours stay on this device.", [{ label: "Send it to the server", act: send }]);
  }
  const like = (await uploadedPicture(file, likePicture))?.picture;
  if (!like) return;
  if (!like.startsWith("example:")) likedPictures.set(like, { name: file.name, url: URL.createObjectURL(file) });
  if (hasParameter(activeView().method, "target")) setParameter("target", { like });
}

/** @param {any} options */
export async function openOwn({ files, folder = "", hub, overrides }) {
  notify("");
  if (!files.length === !hub.trim()) return notify("A checkpoint of your own: choose its file or write a name, not both.");
  try {
    const uploadedFiles = [];
    for (const file of files) uploadedFiles.push(await backend.upload(file));
    openUploaded({ files: uploadedFiles, folder, hub, overrides });
  } catch (/** @type {any} */ error) {
    notify(`The checkpoint could not be uploaded: ${error.message ?? error}`, [retryOf(() => openOwn({ files, folder, hub, overrides }))]);
  }
}

/**
 * Open the files of a checkpoint again, and say its architecture.
 * @param {{ files: any[], hub: string, overrides: string }} own
 * @param {string} architecture
 */
export const openAs = (own, architecture) =>
  openUploaded({ ...own, overrides: [own.overrides, `architecture=${architecture}`].filter(Boolean).join(", ") });

/** @param {{ files: any[], hub: string, overrides: string, folder?: string }} own */
function openUploaded(own) {
  const id = `own-new:${randomId()}`;
  uploads.set(id, own);
  chooseModel(id);
}
