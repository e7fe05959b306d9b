"""The network in the workers of a real browser: from a file, under a strict policy, alone and shared out."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from playwright.sync_api import Browser, Page, Route
from safetensors.torch import save

import vitviz
from tests.driver import new_context
from tests.support.device import FOLDER, KINDS, WASM, Kind
from tests.support.example import ROOT
from tests.support.long_runs import one_in
from tests.ui.explorer.page_driver import SHAPES, made
from vitviz import Model, VisionTransformer, ViTConfig
from vitviz.ui.explorer import assets
from vitviz.ui.explorer.device_file import device_file

TOLERANCE = 1e-4
POLICY = "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; worker-src blob:; connect-src 'self'"
ADDRESS = "http://127.0.0.1:1/"
PAGE = "<!doctype html><meta charset=utf-8><title>Device</title><script src=page.js></script>"
# Parts of an encoding are compared by their bytes in base64.
SCRIPT = """
const fromText = (text) => Uint8Array.fromBase64(text).buffer;
const asTexts = (encoding) => Object.fromEntries(Object.entries(encoding).map(([name, value]) =>
  [name, value instanceof Float32Array ? new Uint8Array(value.buffer, value.byteOffset, value.byteLength).toBase64() : value]));
Object.assign(globalThis, { openDevice, fromText, asTexts });
"""
OPEN = """async ({ file, wasm, script, workers }) => {
  const [kind, binary] = wasm;
  globalThis.device = await openDevice({ file: fromText(file), wasm: { [kind]: fromText(binary) }, script, workers });
  return device.kernels;
}"""
ENCODE = """async ({ pictures, options }) => {
  const encodings = [];
  for (const picture of pictures) encodings.push(asTexts(await device.encode(new Float32Array(fromText(picture)), options)));
  return encodings;
}"""


def text(content: bytes) -> str:
    return base64.b64encode(content).decode()


def numbers(encoded: str) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(base64.b64decode(encoded), np.float32).copy())


@contextmanager
def strict(browser: Browser) -> Iterator[Page]:
    """A page that allows what the network needs and nothing else; whatever it asks for fails its test."""
    files = {"": (PAGE, "text/html"), "page.js": (assets.script("device/team.js") + SCRIPT, "text/javascript")}
    page, asked = new_context(browser).new_page(), []

    def answer(route: Route) -> None:
        name = route.request.url.removeprefix(ADDRESS)
        asked.append(name)
        body, kind = files[name]
        route.fulfill(body=body, content_type=kind, headers={"Content-Security-Policy": POLICY})

    page.route(f"{ADDRESS}**", answer)
    page.goto(ADDRESS)
    yield page
    page.context.close()
    assert asked == ["", "page.js"]


@pytest.fixture
def strict_page(browser: Browser) -> Iterator[Page]:
    with strict(browser) as page:
        yield page


def open_device(page: Page, model: Model, kind: Kind, workers: int) -> None:
    wasm = [kind, text((FOLDER / WASM[kind]).read_bytes())]
    script = assets.script("device/device_worker.js")
    device = {"file": text(device_file(model)), "wasm": wasm, "script": script, "workers": workers}
    assert page.evaluate(OPEN, device) == kind


def encode(page: Page, pictures: list[torch.Tensor], **options: Any) -> list[dict[str, Any]]:
    return page.evaluate(ENCODE, {"pictures": [text(each.numpy().tobytes()) for each in pictures], "options": options})


def assert_exact(model: Model, pixels: torch.Tensor, found: dict[str, Any]) -> None:
    encoding = model.network.encode(pixels)
    trace = encoding.traces[0]
    for name, value in (("logits", encoding.logits[0]), ("queries", trace.queries), ("keys", trace.keys)):
        assert (numbers(found[name]) - value.flatten()).abs().max() <= TOLERANCE, name


def first_layers(model: Model, depth: int) -> Model:
    """The model with so many of its layers."""
    network = VisionTransformer(ViTConfig(**vars(model.network.config) | {"depth": depth})).eval()
    network.load_state_dict(model.network.state_dict(), strict=False)
    return Model("first layers", network.requires_grad_(False), model.preprocessing, model.labels)


def prepared(model: Model, paths: list[Path]) -> list[torch.Tensor]:
    return [vitviz.analyze(path, model).prepared.pixels for path in paths]


TEAMS = {f"{kind}, {workers}": (kind, workers) for kind in KINDS for workers in (1, 2, 3)}


@pytest.mark.parametrize("team", one_in(4, TEAMS))
def test_two_pictures_have_the_librarys_numbers(strict_page: Page, bundled: Model, team: tuple[Kind, int]) -> None:
    # Of the first layers: tests/ui/explorer/test_device.py has the numbers of all.
    model = first_layers(bundled, 2)
    pictures = prepared(model, [ROOT / "assets" / name for name in ("chelsea.jpg", "rocket.jpg")])
    open_device(strict_page, model, *team)
    for pixels, found in zip(pictures, encode(strict_page, pictures), strict=True):
        assert_exact(model, pixels, found)


def test_a_pass_is_replaced_and_others_go_on(strict_page: Page) -> None:
    # A small file of many tokens, so that a pass takes a while.
    height, width, *others = SHAPES["large"]
    pictures = [torch.randn(1, 3, height, width) for _ in range(2)]
    open_device(strict_page, made(height, width, *others, layers=8), "simd", 2)
    first, second = encode(strict_page, pictures)
    found = strict_page.evaluate(
        """async (pictures) => {
          const [first, second] = pictures.map((picture) => new Float32Array(fromText(picture)));
          const controller = new AbortController(), steps = [];
          const replaced = device.encode(first, { signal: controller.signal }, (done, total) => {
            steps.push([done, total]);
            if (done === 2) controller.abort();
          });
          // Before it begins, or while it waits.
          const waiting = new AbortController(), never = device.encode(first, { signal: waiting.signal }, () => steps.push("never"));
          waiting.abort();
          const apart = [first, second].map((pixels) => device.encode(pixels, { apart: true, logitsOnly: true }));
          const next = device.encode(second), wrong = device.encode(second.subarray(1));
          const results = await Promise.allSettled([replaced, never, next, wrong, ...apart]);
          const last = asTexts(await device.encode(first));
          device.close();
          const closed = await device.encode(first).catch((error) => error.message);
          const values = results.map(({ value, reason }) => value ? asTexts(value) : `${reason.name}: ${reason.message}`);
          return { steps, values, last, closed };
        }""",
        [text(each.numpy().tobytes()) for each in pictures],
    )
    assert found["steps"] == [[0, 8], [1, 8], [2, 8]]
    replaced, never, following, wrong, *apart = found["values"]
    assert replaced.startswith("AbortError") and never.startswith("AbortError")
    count = 3 * height * width
    assert wrong == f"Error: {count - 1} pixels: expected {count}"
    assert following == second and found["last"] == first
    for each, whole in zip(apart, (first, second), strict=True):
        assert (numbers(each["logits"]) - numbers(whole["logits"])).abs().max() <= 1e-5
        assert each["queries"] == ""
    assert found["closed"] == "The network was closed"


def test_gradients_are_computed_beside_other_passes(strict_page: Page, bundled: Model) -> None:
    pixels = prepared(bundled, [ROOT / "assets" / "chelsea.jpg"])[0]
    open_device(strict_page, bundled, "simd", 2)
    found = strict_page.evaluate(
        """async (picture) => {
          const pixels = new Float32Array(fromText(picture)), steps = [], controller = new AbortController();
          const stopped = device.differentiate(pixels, { index: 3 }, { pixels: true }, { signal: controller.signal }, (done) => {
            if (done === 10) controller.abort();
          });
          const whole = device.differentiate(
            pixels, { index: 3 }, { pixels: true, legrad: true }, {}, (done, total) => steps.push([done, total]));
          const plain = device.encode(pixels), wrong = device.differentiate(pixels, { index: 108 }, {});
          const results = await Promise.allSettled([stopped, whole, plain, wrong]);
          return { steps, results: results.map(({ value, reason }) => value ? asTexts(value) : reason.message) };
        }""",
        text(pixels.numpy().tobytes()),
    )
    stopped, whole, plain, wrong = found["results"]
    assert "aborted" in stopped and wrong == "class 108: there are 108"
    assert found["steps"] == [[step, 24] for step in range(24)]
    assert (numbers(whole["logits"]) - numbers(plain["logits"])).abs().max() <= 1e-5
    with torch.enable_grad():
        image = pixels.clone().requires_grad_()
        gradient = torch.autograd.grad(bundled.network(image)[0, 3], image)[0]
    assert (numbers(whole["pixels"]) - gradient.flatten()).abs().max() <= TOLERANCE * gradient.abs().max()


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (lambda file: file[:-1000], "The file of the network ends before"),
        (lambda file: file[:100], "This is not a network for the page, or not all of it"),
        (lambda file: save({"weight": torch.zeros(3)}, {"format": "pt"}), "expected the format vitviz device 1"),
    ],
)
def test_a_broken_file_is_refused(
    strict_page: Page, make_model: Callable[..., Model], broken: Callable[[bytes], bytes], message: str
) -> None:
    file = text(broken(device_file(make_model())))
    found = strict_page.evaluate(
        "(file) => openDevice({ file: fromText(file), wasm: {}, script: '' }).catch((error) => error.message)", file
    )
    assert message in found
