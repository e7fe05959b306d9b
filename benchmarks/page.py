"""The network in the page, in headless Chromium: ``python -m benchmarks.page``.

For the bundled network, and a ViT-S/14 and ViT-B/16 with random weights: milliseconds to load the weights into the
workers, of the first pass, and of those after it, from prepared pixels to logits, queries, keys and tokens; of the
gradients of relevance; seconds of 196 passes, as many as occlusion of the bundled network needs; and the peak of the
memory of the browser's process that has the page. ``--kinds plain`` measures plain JavaScript.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread

import torch
from playwright.sync_api import sync_playwright

import vitviz
from benchmarks.machine import machine
from benchmarks.resident import tree
from tests.browser import find_browser
from vitviz import Model, Preprocessing, VisionTransformer, ViTConfig
from vitviz.ui.explorer import assets
from vitviz.ui.explorer.device_file import device_file

WASM = {"relaxed": "kernels-relaxed.wasm", "simd": "kernels.wasm", "plain": None}
MEASURE = """async ([kind, wasm, workers, values, passes, occludes]) => {
  const file = await (await fetch("network")).arrayBuffer(), script = await (await fetch("worker.js")).text();
  const binaries = wasm ? { [kind]: await (await fetch(wasm)).arrayBuffer() } : {}, times = [];
  const timed = async (compute) => {
    const start = performance.now();
    await compute();
    times.push(performance.now() - start);
  };
  let device;
  await timed(async () => { device = await openDevice({ file, wasm: binaries, script, workers }); });
  const pixels = Float32Array.from({ length: values }, (_, i) => Math.sin(0.37 * i));
  for (let pass = 0; pass < passes; pass++) await timed(() => device.encode(pixels));
  const relevance = () => device.differentiate(pixels, { index: 0 }, { products: "positive" });
  for (let pass = 0; pass < 3; pass++) await timed(relevance);
  // Occlusion of 196 squares: as many passes at once as there are workers.
  const occluded = Array(196 * occludes).fill(() => device.encode(pixels, { apart: true, logitsOnly: true }));
  await timed(() => Promise.all(occluded.map((encode) => encode())));
  if (device.kernels !== kind) throw Error(`${device.kernels}: expected ${kind}`);
  return times;
}"""


def random_vit(name: str, patch: int, width: int, heads: int) -> Model:
    config = ViTConfig(224, 224, patch, patch, width, 12, heads, 64, 4 * width, 1000)
    network = VisionTransformer(config).eval().requires_grad_(False)
    preprocessing = Preprocessing(224, 224, (0.5,) * 3, (0.5,) * 3)
    return Model(name, network, preprocessing, tuple(map(str, range(1000))))


MODELS: dict[str, Callable[[], Model]] = {
    "bundled": vitviz.load,
    "ViT-S/14": partial(random_vit, "ViT-S/14", 14, 384, 6),
    "ViT-B/16": partial(random_vit, "ViT-B/16", 16, 768, 12),
}


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: object) -> None:
        pass


@contextmanager
def served(folder: Path) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(folder))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def renderer_peak_bytes() -> int:
    """The most memory that a page of this process's browser has had."""
    peaks = [0]
    for process in tree(os.getpid()):
        folder = Path(f"/proc/{process}")
        if b"--type=renderer" in (folder / "cmdline").read_bytes():
            peaks += [1024 * int(each) for each in re.findall(r"VmHWM:\s+(\d+)", (folder / "status").read_text())]
    return max(peaks)


def measure(model: Model, kind: str, workers: int, passes: int) -> str:
    """The row of a table."""
    preprocessing = model.preprocessing
    values = len(preprocessing.mean) * preprocessing.height * preprocessing.width
    with TemporaryDirectory() as name, sync_playwright() as playwright:
        folder = Path(name)
        (folder / "network").write_bytes(device_file(model))
        (folder / "index.html").write_text("<!doctype html><script src=page.js></script>")
        (folder / "page.js").write_text(assets.script("device/team.js"))
        (folder / "worker.js").write_text(assets.script("device/device_worker.js"))
        wasm = WASM[kind]
        if wasm:
            (folder / wasm).write_bytes((assets.FOLDER / "device" / wasm).read_bytes())
        browser = playwright.chromium.launch(executable_path=find_browser(), args=["--no-sandbox"])
        with served(folder) as address:
            page = browser.new_page()
            page.goto(address)
            arguments = [kind, wasm, workers, values, passes, model.name == "vitviz-photos"]
            load, first, *warm, one, two, three, occlusion = page.evaluate(MEASURE, arguments)
        peak = renderer_peak_bytes()
        browser.close()
    times = f"{load:.0f} | {first:.0f} | {statistics.median(warm):.0f} | {min(warm):.0f} | {min(one, two, three):.0f}"
    times += f" | {occlusion / 1000:.1f}"
    return f"| {model.name} | {kind} | {workers} | {times} | {peak / 1e6:.0f} |"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--kinds", nargs="+", choices=WASM, default=["relaxed", "simd"])
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--passes", type=int, default=8, help="of which the first is warm-up")
    options = parser.parse_args(arguments)
    torch.manual_seed(0)
    print(", ".join(f"{name} {value}" for name, value in machine(torch.get_num_threads(), quick=False).items()))
    print("| network | kernels | workers | load, ms | first | warm | fastest | relevance | occlusion, s | peak, MB |")
    print("| --- " * 10 + "|")
    for name in options.models:
        model = MODELS[name]()
        for kind in options.kinds:
            for workers in options.workers:
                print(measure(model, kind, workers, options.passes), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
