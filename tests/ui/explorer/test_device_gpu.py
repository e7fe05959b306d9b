"""The network on a graphics card, by WebGPU, which the browser computes in software here: its numbers, and what it does when
the card fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from playwright.sync_api import Browser, Page, expect

from tests.browser import find_browser
from tests.driver import EXPLORER
from tests.support.device import FOLDER
from tests.support.device_models import check_many, random_model
from tests.support.example import EXAMPLE
from tests.support.long_runs import one_in
from tests.ui.explorer.page_driver import SHAPES, made
from tests.ui.explorer.test_device import assert_same, drawn, expected
from tests.ui.explorer.test_device_page import Visit, compare, show
from tests.ui.explorer.test_device_team import encode, numbers, strict, text
from vitviz import Model, Preprocessing, VisionTransformer, ViTConfig
from vitviz.ui.explorer import assets
from vitviz.ui.explorer.device_file import device_file
from vitviz.ui.explorer.device_page import device_page

SOFTWARE = ["--no-sandbox", "--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader"]
CARD = "google swiftshader"
# Opens a network, and says whether the card computes it, or why not.
OPEN = """async ({ file, wasm, script, gpu, faults }) => {
  const simd = fromText(wasm);
  globalThis.device = await openDevice({ file: fromText(file), wasm: { simd }, script: faults + script, gpu, workers: 2 });
  while (!device.card && !device.cardless) await new Promise((resolve) => setTimeout(resolve, 5));
  return [device.card, device.cardless];
}"""
# Opens a network, has passes wait from the beginning until the card was tried, and says what computed each.
OPEN_BUSY = """async ({ file, wasm, script, gpu, picture }) => {
  globalThis.device = await openDevice({ file: fromText(file), wasm: { simd: fromText(wasm) }, script, gpu, workers: 1 });
  const pixels = new Float32Array(fromText(picture)), cards = [];
  const pass = async () => {
    while (!device.card && !device.cardless) cards.push((await device.encode(pixels)).card ?? "");
  };
  await Promise.all([pass(), pass(), pass()]);
  return [device.cardless, cards];
}"""
# What a page's card is, once it was tried.
TRIED = f"""async () => {{
  const {{ team }} = await ({EXPLORER}).backend.networks.get("");
  while (!team.card && !team.cardless) await new Promise((resolve) => setTimeout(resolve, 5));
  return [team.card, team.cardless];
}}"""
# What a test has the worker of the card do, before its own answers.
FAULTS = """
const faults = {
  lost: () => {
    const { read } = gpu;
    gpu.read = (parts) => (gpu.device.destroy(), read.call(gpu, parts));
  },
  invalid: () => gpu.orders.destroy(),
  silent: () => { GPUBuffer.prototype.mapAsync = () => new Promise(() => {}), MAX_WAIT_MS = 100; },
};
self.addEventListener("message", (event) => {
  if (!faults[event.data.kind]) return;
  faults[event.data.kind]();
  event.stopImmediatePropagation();
});
"""
# Software that says that it is a card.
REAL = """
const real = { vendor: "Acme", architecture: "3000", isFallbackAdapter: false };
for (const [name, value] of Object.entries(real)) Object.defineProperty(GPUAdapterInfo.prototype, name, { value });
"""
FAIL = """async ([fault, pictures]) => {
  const [during, after] = pictures.map((picture) => new Float32Array(fromText(picture)));
  device.workers[0].postMessage({ kind: fault });
  return [asTexts(await device.encode(during)), asTexts(await device.encode(after))];
}"""
REASONS = {"lost": "", "invalid": "estroyed", "silent": "the card does not answer"}


@pytest.fixture(scope="module")
def software_browser(browser: Browser) -> Iterator[Browser]:
    """A browser whose graphics card is software."""
    found = browser.browser_type.launch(executable_path=find_browser(), args=SOFTWARE)
    yield found
    found.close()


@pytest.fixture
def gpu_page(software_browser: Browser) -> Iterator[Page]:
    with strict(software_browser) as page:
        yield page


def device_of(model: Model, shaders: str = "", *, software: bool = True, faults: str = "") -> dict[str, Any]:
    """What opens a network with a card."""
    return {
        "file": text(device_file(model)),
        "wasm": text((FOLDER / "kernels.wasm").read_bytes()),
        "script": assets.script("device/device_worker.js").replace("const MAX_WAIT_MS", "let MAX_WAIT_MS"),
        "gpu": {"shaders": shaders or (FOLDER / "kernels.wgsl").read_text(), "software": software},
        "faults": faults,
    }


def open_gpu(
    page: Page, model: Model, *, shaders: str = "", software: bool = True, faults: str = FAULTS
) -> tuple[str, str]:
    """The name of the card that computes, and why there is none."""
    card, reason = page.evaluate(OPEN, device_of(model, shaders, software=software, faults=faults))
    return card, reason


def large_model() -> Model:
    """Several tiles of rows, outputs, inputs and keys, none of which is full; bfloat16."""
    config = ViTConfig(44, 40, 4, 4, 72, 2, 3, 24, 150, 70, register_tokens=3, query_key_norm=True)
    network = VisionTransformer(config).eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(4)
    for parameter in network.parameters():
        parameter.normal_(0, 0.3, generator=generator).copy_(parameter.bfloat16())
    return Model("large", network, Preprocessing(44, 40, (0.5,) * 3, (0.5,) * 3), tuple(map(str, range(70))))


def assert_found(found: dict[str, Any], values: dict[str, Any], card: str | None = CARD) -> None:
    assert found.get("card") == card
    decoded = {
        name: numbers(value) if name in values and isinstance(value, str) else value for name, value in found.items()
    }
    assert_same(decoded, values)


def assert_drawn_is_same(page: Page, model: Model, seed: int) -> None:
    pixels, off = drawn(model, seed)
    assert open_gpu(page, model) == (CARD, "")
    assert_found(encode(page, [pixels])[0], expected(model, pixels))
    values = expected(model, pixels, off)
    assert_found(encode(page, [pixels], **off.options)[0], values)
    only = encode(page, [pixels], **off.options, logitsOnly=True)[0]
    assert_found(only, {"logits": values["logits"], "queries": torch.empty(0)})
    page.evaluate("device.close()")


@pytest.mark.parametrize("seed", one_in(2, {"14": 14, "1": 1}))
def test_a_network_on_a_card_has_the_librarys_numbers(gpu_page: Page, seed: int) -> None:
    assert_drawn_is_same(gpu_page, random_model(seed), seed)


@pytest.mark.parametrize("fault", one_in(3, {each: each for each in ("lost", "invalid", "silent")}))
def test_what_fails_on_a_card_is_computed_without_it(gpu_page: Page, fault: str) -> None:
    model = large_model()
    pixels = [drawn(model, seed)[0] for seed in range(3)]
    assert open_gpu(gpu_page, model) == (CARD, "")
    assert_found(encode(gpu_page, pixels[:1])[0], expected(model, pixels[0]))
    # While the card computes.
    during, after = gpu_page.evaluate(FAIL, [fault, [text(each.numpy().tobytes()) for each in pixels[1:]]])
    assert_found(during, expected(model, pixels[1]), card=None)
    assert_found(after, expected(model, pixels[2]), card=None)
    assert gpu_page.evaluate("device.card") == ""
    reason = gpu_page.evaluate("device.cardless")
    assert reason and REASONS[fault] in reason


def test_a_card_that_is_software_or_lacks_something_is_refused(
    gpu_page: Page, make_model: Callable[..., Model]
) -> None:
    model = make_model()
    assert open_gpu(gpu_page, model, software=False) == ("", f"{CARD} is software")
    card, reason = open_gpu(gpu_page, model, shaders="fn linear() { wrong }")
    assert card == "" and reason.startswith("kernels.wgsl, line 1: ")
    pixels, _ = drawn(model, 0)
    assert_found(encode(gpu_page, [pixels])[0], expected(model, pixels), card=None)


@pytest.mark.long
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("1.0 / sqrt(", "1.001 / sqrt("),
        ("value += weight(bias", "value -= weight(bias"),
        # Where there are more than 64 keys, and 32 rows.
        ("sum *= correction;", ""),
        ("let row = first_row + four_rows", "let row = first_row % 32u + four_rows"),
    ],
)
def test_a_card_with_other_numbers_is_refused(gpu_page: Page, right: str, wrong: str) -> None:
    shaders = (FOLDER / "kernels.wgsl").read_text()
    assert right in shaders
    card, reason = open_gpu(gpu_page, large_model(), shaders=shaders.replace(right, wrong))
    assert card == "" and reason.endswith("are not those of WebAssembly")


def test_a_card_computes_nothing_before_it_is_checked(gpu_page: Page) -> None:
    shaders, model = (FOLDER / "kernels.wgsl").read_text(), large_model()
    device = device_of(model, shaders.replace("1.0 / sqrt(", "1.001 / sqrt("))
    picture = text(drawn(model, 0)[0].numpy().tobytes())
    reason, cards = gpu_page.evaluate(OPEN_BUSY, {**device, "picture": picture})
    assert reason.endswith("are not those of WebAssembly") and len(cards) > 3 and set(cards) == {""}


@pytest.mark.long
def test_a_real_card_that_is_slower_is_refused(gpu_page: Page) -> None:
    answer = open_gpu(gpu_page, large_model(), software=False, faults=REAL)
    assert answer == ("", "Acme 3000 is slower than WebAssembly")


@pytest.mark.long
def test_many_networks_on_a_card_have_the_librarys_numbers(gpu_page: Page) -> None:
    check_many(50, lambda seed: assert_drawn_is_same(gpu_page, random_model(seed), seed))


@pytest.mark.parametrize("software", one_in(2, {"refused": False, "allowed": True}))
def test_a_page_says_what_computes_it(software_browser: Browser, tmp_path: Path, software: bool) -> None:
    model, path = made(*SHAPES["registers"]), tmp_path / "page.html"
    page = device_page([model], EXAMPLE, name=EXAMPLE.name)
    # A visitor's page has no such switch.
    worker = page.parts["device_worker.js"]
    allowed = worker.replace(b"software = false", b"software = true")
    assert allowed != worker
    if software:
        page = replace(page, parts={**page.parts, "device_worker.js": allowed})
    path.write_text(page.as_file(), encoding="utf-8")
    with Visit(software_browser, path.as_uri(), is_offline=True) as visit:
        show(visit.page, EXAMPLE)
        card, reason = visit.page.evaluate(TRIED)
        assert (card, reason) == ((CARD, "") if software else ("", f"{CARD} is software"))
        show(visit.page, EXAMPLE.with_name("rocket.jpg"))
        compare(visit.page, model, EXAMPLE.with_name("rocket.jpg"))
        engine = f"WebGPU ({CARD})" if software else "WebAssembly"
        expect(visit.page.locator(".vx-engine")).to_have_text(f"Computed on this device, by {engine}.")
        assert visit.requests_but("blob:", "data:") == [path.as_uri()] and visit.errors == []
