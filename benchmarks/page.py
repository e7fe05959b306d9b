"""The network in the page, in headless Chromium: ``python -m benchmarks.page``.

For the bundled network, and a ViT-S/14 and ViT-B/16 with random weights: milliseconds to load the weights into the
workers, of the first pass, and of those after it, from prepared pixels to logits, queries, keys and tokens; of the
gradients of relevance; seconds of 196 passes, as many as occlusion of the bundled network needs; the peak of the
memory of the browser's process that has the page; and the largest difference from the library's logits, queries and
keys. ``--kinds webgpu`` measures the graphics card, once it is checked, which many a browser must be asked for:
``--flags=--enable-unsafe-webgpu``.
"""

from __future__ import annotations

import argparse
import json
import math
import shlex
import statistics
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from queue import Queue
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import psutil
import torch

import vitviz
from benchmarks.measure import status_bytes
from benchmarks.networks import B_16, S_14, vitviz_model
from benchmarks.tables import machine, table
from tests.browser import find_browser
from tests.support.folder_server import FileHandler, served_folder
from vitviz import Model
from vitviz.ui.explorer import assets
from vitviz.ui.explorer.device_file import device_file

WASM = {
    "relaxed": "kernels-relaxed.wasm",
    "simd": "kernels.wasm",
    "webgpu": "kernels-relaxed.wasm",
}
MEASURE = """
const [kind, wasm, workers, values, passes, occludes] = FACTS;
async function measure() {
  const [file, script, expected, shaders] = await Promise.all(["network", "worker.js", "expected", "kernels.wgsl"].map(
    async (name) => (await fetch(name))[/js|wgsl/.test(name) ? "text" : "arrayBuffer"]()));
  const gpu = kind === "webgpu" ? { shaders, software: true } : null;
  const binaries = { [gpu ? "relaxed" : kind]: await (await fetch(wasm)).arrayBuffer() }, times = [];
  const timed = async (compute) => {
    const start = performance.now();
    await compute();
    times.push(performance.now() - start);
  };
  let device, encoding;
  await timed(async () => {
    device = await openDevice({ file, wasm: binaries, script, gpu, workers });
    while (gpu && !device.card && !device.cardless) await new Promise((resolve) => setTimeout(resolve, 5));
  });
  const pixels = Float32Array.from({ length: values }, (_, i) => Math.sin(0.37 * i));
  for (let pass = 0; pass < passes; pass++) await timed(async () => { encoding = await device.encode(pixels); });
  const engine = encoding.card ? "webgpu" : device.kernels;
  if (engine !== kind) throw Error(`${engine}: expected ${kind} (${device.cardless})`);
  const found = [encoding.logits, encoding.queries, encoding.keys].flatMap((part) => [...part]);
  const error = new Float32Array(expected).reduce((most, value, i) => Math.max(most, Math.abs(value - found[i])), 0);
  const relevance = () => device.differentiate(pixels, { index: 0 }, { products: "positive" });
  for (let pass = 0; pass < 3; pass++) await timed(relevance);
  // Occlusion of 196 squares: as many passes at once as there are workers.
  const occluded = Array(196 * occludes).fill(() => device.encode(pixels, { apart: true, logitsOnly: true }));
  await timed(() => Promise.all(occluded.map((encode) => encode())));
  return { times, error, card: encoding.card ?? "" };
}
measure().catch((error) => ({ failed: error.message }))
  .then((answer) => fetch("answer", { method: "POST", body: JSON.stringify(answer) }));
"""


MAX_SECONDS = 600
MODELS: dict[str, Callable[[], Model]] = {
    "bundled": vitviz.load,
    "ViT-S/14": lambda: vitviz_model(S_14.at(224), is_sharp=False),
    "ViT-B/16": lambda: vitviz_model(B_16, is_sharp=False),
}


class Handler(FileHandler):
    """Serves a folder, and puts what a page posts into a queue."""

    answers: ClassVar[Queue[dict[str, Any]]] = Queue()

    def do_POST(self) -> None:
        self.answers.put(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        self.send_response(204)
        self.end_headers()


@contextmanager
def opened(folder: Path, flags: Sequence[str]) -> Iterator[dict[str, Any]]:
    """What the page of a folder posts, while its browser runs."""
    with served_folder(folder, Handler) as address, TemporaryDirectory() as profile:
        command = [find_browser(), "--headless", "--no-sandbox", f"--user-data-dir={profile}", *flags, address]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as browser:
            try:
                yield Handler.answers.get(timeout=MAX_SECONDS)
            finally:
                browser.terminate()


def measure(model: Model, kind: str, workers: int, passes: int, flags: Sequence[str]) -> dict[str, str]:
    """The cells of a row of the table."""
    preprocessing = model.preprocessing
    shape = len(preprocessing.mean), preprocessing.height, preprocessing.width
    pixels = torch.sin(0.37 * torch.arange(math.prod(shape), dtype=torch.float64)).float().view(1, *shape)
    encoding = model.own_network(model.name).encode(pixels)
    trace = encoding.traces[0]
    expected = torch.cat([each.flatten() for each in (encoding.logits, trace.queries, trace.keys)])
    facts = [kind, WASM[kind], workers, pixels.numel(), passes, model.name == "vitviz-photos"]
    names = ("kernels.wgsl", *filter(None, WASM.values()))
    files = {name: (assets.FOLDER / "device" / name).read_bytes() for name in names} | {
        "network": device_file(model),
        "expected": expected.numpy().tobytes(),
        "index.html": b"<!doctype html><script src=page.js></script>",
        "page.js": (assets.script("device/team.js") + MEASURE.replace("FACTS", json.dumps(facts))).encode(),
        "worker.js": assets.script("device/device_worker.js").encode(),
    }
    with TemporaryDirectory() as folder:
        for name, content in files.items():
            (Path(folder) / name).write_bytes(content)
        with opened(Path(folder), flags) as answer:
            browser = psutil.Process().children(recursive=True)
            pages = [each.pid for each in browser if "--type=renderer" in " ".join(each.cmdline())]
            peak = max(status_bytes("VmHWM", Path(f"/proc/{pid}")) for pid in pages)
    if "failed" in answer:
        return {"engine": answer["failed"]}
    load, first, *warm, one, two, three, occlusion = answer["times"]
    return {
        "engine": f"{kind} {answer['card']}".strip(),
        "load, ms": f"{load:.0f}",
        "first": f"{first:.0f}",
        "warm": f"{statistics.median(warm):.1f}",
        "fastest": f"{min(warm):.1f}",
        "relevance": f"{min(one, two, three):.0f}",
        "occlusion, s": f"{occlusion / 1000:.1f}",
        "peak, MB": f"{peak / 1e6:.0f}",
        "error": f"{answer['error']:.1e}",
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--kinds", nargs="+", choices=WASM, default=["relaxed", "simd"])
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--passes", type=int, default=8, help="of which the first is warm-up")
    parser.add_argument("--flags", type=shlex.split, default=[], help="of the browser, with “=” before them")
    options = parser.parse_args(arguments)
    rows = {}
    for name, kind, workers in product(options.models, options.kinds, options.workers):
        row = f"{name}, {kind}, workers: {workers}"
        rows[row] = measure(MODELS[name](), kind, workers, options.passes, options.flags)
        print(row, *rows[row].values(), flush=True)
    print("", *(f"{name}: {value}" for name, value in machine().items()), "", *table(rows), sep="\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
