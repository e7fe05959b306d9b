"""The explorer in a browser: what it shows, what it computes, and apps of small networks to open it with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import gradio as gr
import numpy as np
import torch
from playwright.sync_api import Browser, Locator, Page, Request, expect

import vitviz
from tests.driver import EXAMPLE, new_page
from vitviz import Analysis, Model, Preprocessing, VisionTransformer, ViTConfig
from vitviz.ui import build_demo, serve
from vitviz.ui.handlers import Handlers
from vitviz.ui.knobs import Knobs
from vitviz.ui.runs import Runs

# What the page offers to tests.
EXPLORER = "document.querySelector('.vx').parentElement.explorer"
LAYERS, HEADS = 3, 2
# Name, height and width of the input, registers, and the side of a patch.
SHAPES = {
    "cifar": (32, 32, 0, 4),
    "base": (56, 56, 0, 4),
    "registers": (24, 40, 4, 4),
    "large": (148, 148, 0, 4),
}


def made(height: int, width: int, registers: int, patch: int, layers: int = LAYERS) -> Model:
    """A small network with random weights that sees the middle of a picture."""
    torch.manual_seed(0)
    config = ViTConfig(
        image_height=height,
        image_width=width,
        patch_height=patch,
        patch_width=patch,
        width=16,
        depth=layers,
        heads=HEADS,
        head_width=8,
        mlp_width=16,
        classes=3,
        register_tokens=registers,
    )
    network = VisionTransformer(config).eval().requires_grad_(False)
    for parameter in network.parameters():
        parameter.normal_(0, 0.7)
    preprocessing = Preprocessing(height, width, (0.5,) * 3, (0.5,) * 3, "crop")
    return Model("small", network, preprocessing, ("a", "b", "c"))


@dataclass
class SmallApp:
    """The app of a small network in this process.

    Args:
        address: of its page.
        demo: the page.
        model: with which it opens.
    """

    address: str
    demo: gr.Blocks
    model: Model

    @cached_property
    def analysis(self) -> Analysis:
        """What the page shows first."""
        return vitviz.analyze(EXAMPLE, self.model)

    @cached_property
    def runs(self) -> Runs:
        """What answers the page."""
        [found] = [
            fn.fn.__self__ for fn in self.demo.fns.values() if isinstance(getattr(fn.fn, "__self__", None), Runs)
        ]
        assert isinstance(found, Runs)
        return found

    @property
    def handlers(self) -> Handlers:
        return self.runs.handlers

    def forget(self) -> None:
        """Let go of every analysis."""
        self.handlers.service.cache.drop(self.model)


@contextmanager
def small_app(model: Model, knobs: Knobs | None = None) -> Iterator[SmallApp]:
    demo = build_demo(model, knobs or Knobs())
    address = serve(demo, knobs or Knobs(), block=False, quiet=True)
    try:
        yield SmallApp(address, demo, model)
    finally:
        demo.close(verbose=False)


@contextmanager
def watched(browser: Browser, address: str, link: str = "", theme: str = "light") -> Iterator[Page]:
    """The page once all its files are there; fails the test on an error in it.

    Args:
        browser: where it is opened.
        address: of the app.
        link: what its address asks for.
        theme: of Gradio.
    """
    wrong: list[str] = []
    page = new_page(browser)
    page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.goto(f"{address}/?__theme={theme}{link and f'&{link}'}")
    settled(page)
    yield page
    page.close()
    assert wrong == [], wrong


def settled(page: Page) -> None:
    """Wait until the page shows what was chosen, its address says so, and it fetches nothing more."""
    page.wait_for_function(
        """() => {
            const explorer = document.querySelector(".vx")?.parentElement.explorer;
            if (!explorer?.settled()) return false;
            const shown = explorer.panes.filter((pane) => !pane.element.hidden);
            return shown.every(({ packs, painter }) => painter && packs.loading.size === 0);
        }"""
    )
    drawn(page)


def drawn(page: Page) -> None:
    """Wait until what was asked for before the next frame is drawn."""
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def loaded(page: Page, uid: str = "") -> None:
    """Wait until the first canvas shows a map; of one analysis, where its id is said."""
    value = f"={uid}" if uid else ""
    expect(page.locator(f".vx-canvas[data-loaded{value}]").first).to_be_attached()


def weights(page: Page, layer: int, head: int | str, token: int, direction: str) -> np.ndarray:
    """What the page computes of attention: ``"token"``."""
    [found] = all_weights(page, [(layer, head, token, direction)])
    return found


def all_weights(page: Page, questions: list[tuple[int, int | str, int, str]]) -> list[np.ndarray]:
    """The same for many layers, heads, tokens and directions at once."""
    found = page.evaluate(
        f"(asked) => asked.map((each) => Array.from({EXPLORER}.panes[0].attention.map(...each)))", questions
    )
    return [np.array(each) for each in found]


def rolled(page: Page, token: int) -> np.ndarray:
    """A token's rollout as the page has it: ``"token"``."""
    return np.array(page.evaluate(f"(token) => Array.from({EXPLORER}.panes[0].attention.rollout(token))", token))


def state_of(page: Page) -> dict[str, Any]:
    found: dict[str, Any] = page.evaluate(f"{EXPLORER}.store.state")
    return found


def canvas_of(page: Page, pane: int = 0) -> Locator:
    return page.locator(".vx-canvas").nth(pane)


def status(page: Page, pane: int = 0) -> Locator:
    return page.locator(".vx-status").nth(pane)


def at(page: Page, analysis: Analysis, row: int, column: int, pane: int = 0) -> dict[str, float]:
    """The middle of a patch, in pixels of the canvas."""
    edges, layout = canvas_of(page, pane).bounding_box(), analysis.trace.layout
    assert edges is not None
    geometry = analysis.prepared.geometry
    left, top, right, bottom = geometry.patch_rectangle(row, column, layout.grid_height, layout.grid_width)
    width, height = analysis.prepared.image.size
    return {"x": (left + right) / 2 / width * edges["width"], "y": (top + bottom) / 2 / height * edges["height"]}


def pixels(canvas: Locator) -> str:
    address: str = canvas.evaluate("canvas => canvas.toDataURL()")
    return address


def radio(page: Page, parameter: str, name: str) -> Locator:
    """A choice of a parameter of the map."""
    return page.locator(f".vx-parameter[data-name={parameter}]").get_by_label(name, exact=True)


def slider(page: Page, parameter: str) -> Locator:
    return page.locator(f".vx-parameter[data-name={parameter}] input[type=range]")


def panel(page: Page, title: str) -> None:
    """Open one of the panels below the picture."""
    summary = page.locator(".vx-panel summary", has_text=title)
    if not summary.evaluate("summary => summary.parentElement.open"):
        summary.click()


def asked(request: Request) -> Mapping[str, Any]:
    """What a request to a function of the server asks for; nothing of another request."""
    if "component_server" not in request.url:
        return {}
    found: Mapping[str, Any] = request.post_data_json
    return found
