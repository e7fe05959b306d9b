// Questions to a worker, each with its answer.

const { trustedTypes } = /** @type {any} */ (globalThis);
// Where the page's policy asks for it, this marks the script as the page's own.
const SCRIPT_POLICY = trustedTypes?.createPolicy("vitviz", { createScriptURL: (/** @type {string} */ address) => address });

/** @param {string} address of a script of the page */
export const workerAt = (address) => new Worker(SCRIPT_POLICY?.createScriptURL(address) ?? address);

/**
 * A worker of a script, and the function that asks it.
 * @param {string} script
 */
export function openWorker(script) {
  const worker = workerAt(URL.createObjectURL(new Blob([script], { type: "text/javascript" })));
  /** @type {Map<number, { resolve: (answer: any) => void, reject: (error: any) => void }>} */
  const waiting = new Map();
  let count = 0;
  /** @type {Error | null} */
  let failure = null;
  worker.onmessage = ({ data: { id, answer, failed, expired } }) => {
    const { resolve, reject } = /** @type {any} */ (waiting.get(id));
    waiting.delete(id);
    if (failed === undefined) resolve(answer);
    else reject(Object.assign(Error(failed), expired ? { expired } : {}));
  };
  worker.onerror = ({ message }) => {
    failure = Error(message || "The browser does not start a worker");
    for (const { reject } of waiting.values()) reject(failure);
    waiting.clear();
  };
  return (/** @type {string} */ kind, /** @type {any} */ request, /** @type {Transferable[]} */ moved = []) =>
    new Promise((resolve, reject) => {
      if (failure) return reject(failure);
      waiting.set(++count, { resolve, reject });
      worker.postMessage({ id: count, kind, ...request }, moved);
    });
}
