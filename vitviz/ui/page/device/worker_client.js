// Questions to a worker, each with its answer.

/**
 * A worker of a script, and the function that asks it.
 * @param {string} script
 */
export function openWorker(script) {
  const address = URL.createObjectURL(new Blob([script], { type: "text/javascript" })), worker = new Worker(address);
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
