"""The network in the page, in headless Chromium: ``python -m benchmarks.page``.

For the bundled network, and a ViT-S/14 and ViT-B/16 with random weights: milliseconds to load the weights into the
workers, of the first pass, and of those after it, from prepared pixels to logits, queries, keys and tokens; of the
gradients of relevance; seconds of 196 passes, as many as occlusion of the bundled network needs; the peak of the
memory of the browser's process that has the page; and the largest difference from the library's logits, queries and
keys. ``--kinds plain`` measures plain JavaScript, and ``--kinds webgpu`` the graphics card, once it is checked, which
many a browser must be asked for: ``--flags=--enable-unsafe-webgpu``.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import shlex
import statistics
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Queue
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any

import torch

import vitviz
from benchmarks.machine import machine
from benchmarks.resident import tree
from tests.browser import find_browser
from vitviz import Model, Preprocessing, VisionTransformer, ViTConfig
from vitviz.models.require import require_vit
from vitviz.ui.explorer import assets
from vitviz.ui.explorer.device_file import device_file

WASM = {
    "relaxed": "kernels-relaxed.wasm",
    "simd": "kernels.wasm",
    "plain": None,
    "webgpu": "kernels-relaxed.wasm",
}
MEASURE = """
const [kind, wasm, workers, values, passes, occludes] = FACTS;
async function measure() {
  const [file, script, expected, shaders] = await Promise.all(["network", "worker.js", "expected", "kernels.wgsl"].map(
    async (name) => (await fetch(name))[/js|wgsl/.test(name) ? "text" : "arrayBuffer"]()));
  const gpu = kind === "webgpu" ? { shaders, software: true } : null;
  const binaries = wasm ? { [gpu ? "relaxed" : kind]: await (await fetch(wasm)).arrayBuffer() } : {}, times = [];
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


def random_vit(name: str, patch: int, width: int, heads: int) -> Model:
    config = ViTConfig(224, 224, patch, patch, width, 12, heads, 64, 4 * width, 1000)
    network = VisionTransformer(config).eval().requires_grad_(False)
    preprocessing = Preprocessing(224, 224, (0.5,) * 3, (0.5,) * 3)
    return Model(name, network, preprocessing, tuple(map(str, range(1000))))


MAX_SECONDS = 600
MODELS: dict[str, Callable[[], Model]] = {
    "bundled": vitviz.load,
    "ViT-S/14": partial(random_vit, "ViT-S/14", 14, 384, 6),
    "ViT-B/16": partial(random_vit, "ViT-B/16", 16, 768, 12),
}


class Handler(SimpleHTTPRequestHandler):
    """Serves a folder, and puts what a page posts into a queue."""

    def __init__(self, *arguments: Any, answers: Queue[dict[str, Any]], **options: Any) -> None:
        self.answers = answers
        super().__init__(*arguments, **options)

    def do_POST(self) -> None:
        self.answers.put(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@contextmanager
def opened(folder: Path, flags: Sequence[str]) -> Iterator[dict[str, Any]]:
    """What the page of a folder posts, while its browser runs."""
    answers: Queue[dict[str, Any]] = Queue()
    handler = partial(Handler, directory=str(folder), answers=answers)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server, TemporaryDirectory() as profile:
        Thread(target=server.serve_forever, daemon=True).start()
        arguments = ["--headless", "--no-sandbox", f"--user-data-dir={profile}", *flags]
        address = f"http://127.0.0.1:{server.server_port}/"
        browser = subprocess.Popen([str(find_browser()), *arguments, address], stderr=subprocess.DEVNULL)
        try:
            yield answers.get(timeout=MAX_SECONDS)
        finally:
            browser.terminate()
            browser.wait()
            server.shutdown()


def renderer_peak_bytes() -> int:
    """The most memory that a page of this process's browser has had."""
    peaks = [0]
    for process in tree(os.getpid()):
        folder = Path(f"/proc/{process}")
        if b"--type=renderer" in (folder / "cmdline").read_bytes():
            peaks += [1024 * int(each) for each in re.findall(r"VmHWM:\s+(\d+)", (folder / "status").read_text())]
    return max(peaks)


def measure(model: Model, kind: str, workers: int, passes: int, flags: Sequence[str]) -> str:
    """The row of a table."""
    preprocessing = model.preprocessing
    shape = len(preprocessing.mean), preprocessing.height, preprocessing.width
    pixels = torch.sin(0.37 * torch.arange(math.prod(shape), dtype=torch.float64)).float().view(1, *shape)
    encoding = require_vit(model.network, model.name).encode(pixels)
    trace = encoding.traces[0]
    expected = torch.cat([each.flatten() for each in (encoding.logits, trace.queries, trace.keys)])
    facts = [kind, WASM[kind], workers, pixels.numel(), passes, model.name == "vitviz-photos"]
    device = assets.FOLDER / "device"
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "network").write_bytes(device_file(model))
        (folder / "expected").write_bytes(expected.numpy().tobytes())
        (folder / "index.html").write_text("<!doctype html><script src=page.js></script>")
        script = assets.script("device/team.js") + MEASURE.replace("FACTS", json.dumps(facts))
        (folder / "page.js").write_text(script)
        (folder / "worker.js").write_text(assets.script("device/device_worker.js"))
        for each in ("kernels.wgsl", *filter(None, WASM.values())):
            (folder / each).write_bytes((device / each).read_bytes())
        with opened(folder, flags) as answer:
            peak = renderer_peak_bytes()
    if "failed" in answer:
        return f"| {model.name} | {kind} | {workers} | {answer['failed']} |"
    load, first, *warm, one, two, three, occlusion = answer["times"]
    times = f"{load:.0f} | {first:.0f} | {statistics.median(warm):.1f} | {min(warm):.1f} | {min(one, two, three):.0f}"
    times += f" | {occlusion / 1000:.1f}"
    engine = f"{kind} {answer['card']}".strip()
    return f"| {model.name} | {engine} | {workers} | {times} | {peak / 1e6:.0f} | {answer['error']:.1e} |"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--kinds", nargs="+", choices=WASM, default=["relaxed", "simd"])
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--passes", type=int, default=8, help="of which the first is warm-up")
    parser.add_argument("--flags", type=shlex.split, default=[], help="of the browser, with “=” before them")
    options = parser.parse_args(arguments)
    torch.manual_seed(0)
    print(", ".join(f"{name} {value}" for name, value in machine(torch.get_num_threads(), quick=False).items()))
    columns = ("network", "kernels", "workers", "load, ms", "first", "warm", "fastest", "relevance", "occlusion, s")
    print(f"| {' | '.join((*columns, 'peak, MB', 'error'))} |\n{'| --- ' * 11}|")
    for name in options.models:
        model = MODELS[name]()
        for kind in options.kinds:
            for workers in options.workers:
                print(measure(model, kind, workers, options.passes, options.flags), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
