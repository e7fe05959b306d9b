"""The explorer in a browser: what it shows, what it computes, and apps of small networks to open it with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import torch
from playwright.sync_api import Locator, Page, expect

import vitviz
from tests.support.apps import close
from tests.support.example import EXAMPLE
from vitviz import Analysis, Model, Preprocessing, VisionTransformer, ViTConfig
from vitviz.ui import build_demo, serve
from vitviz.ui.app import App
from vitviz.ui.handlers import Handlers
from vitviz.ui.server.settings import ServerSettings

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


def without_classes(model: Model) -> Model:
    """The same network without its classifier."""
    config = ViTConfig(**{**vars(model.network.config), "classes": 0})
    network = VisionTransformer(config).eval().requires_grad_(False)
    network.load_state_dict(model.network.state_dict(), strict=False)
    return Model("features", network, model.preprocessing, ())


MODELS: dict[str, Callable[[], Model]] = {
    **{name: partial(made, *shape) for name, shape in SHAPES.items()},
    # Of so few patches that all maps with all their scores are soon there.
    "tiny": partial(made, 24, 24, 0, 4),
    "classes": partial(made, 32, 32, 1, 4),
    "features": lambda: without_classes(made(32, 32, 1, 4)),
}
"""The models of the apps that tests share, by their names."""


@dataclass
class SmallApp:
    """The app of a small network in this process.

    Args:
        address: of its page.
        app: of :func:`vitviz.ui.build_demo`.
        model: with which it opens.
    """

    address: str
    app: App
    model: Model

    @cached_property
    def analysis(self) -> Analysis:
        """What the page shows first."""
        return vitviz.analyze(EXAMPLE, self.model)

    @cached_property
    def handlers(self) -> Handlers:
        """What answers the page."""
        return self.app.handlers

    def forget(self) -> None:
        """Let go of every analysis."""
        self.handlers.service._forget_model(self.model)


# Apps of small networks by the names in MODELS.
Apps = Callable[[str], SmallApp]


@contextmanager
def small_app(model: Model, server_settings: ServerSettings | None = None) -> Iterator[SmallApp]:
    app = build_demo(model, server_settings or ServerSettings())
    address = serve(app, block=False, quiet=True)
    try:
        yield SmallApp(address, app, model)
    finally:
        close(app)


def drawn(page: Page) -> None:
    """Wait until what was asked for before the next frame is drawn."""
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def loaded(page: Page, uid: str = "") -> None:
    """Wait until no link is being opened and the first canvas shows a map; of one analysis, where its id is said."""
    value = f"={uid}" if uid else ""
    expect(page.locator(f".vx:not([aria-busy=true]) .vx-canvas[data-loaded{value}]").first).to_be_attached()


def weights(page: Page, layer: int, head: int | str, token: int, direction: str) -> np.ndarray:
    """What the page computes of attention: ``"token"``."""
    [found] = all_weights(page, [(layer, head, token, direction)])
    return found


def all_weights(page: Page, questions: list[tuple[int, int | str, int, str]]) -> list[np.ndarray]:
    """The same for many layers, heads, tokens and directions at once."""
    weights = f"{EXPLORER}.panes[0].attention.map(...each)"
    # What they are computed from is fetched when it is first asked for.
    page.wait_for_function(f"(asked) => asked.every((each) => {weights})", arg=questions)
    found = page.evaluate(f"(asked) => asked.map((each) => Array.from({weights}))", questions)
    return [np.array(each) for each in found]


def rolled(page: Page, token: int) -> np.ndarray:
    """A token's rollout as the page has it: ``"token"``."""
    rollout = f"{EXPLORER}.panes[0].attention.rollout(token)"
    page.wait_for_function(f"(token) => {rollout}", arg=token)
    return np.array(page.evaluate(f"(token) => Array.from({rollout})", token))


def pixels(canvas: Locator) -> str:
    address: str = canvas.evaluate("canvas => canvas.toDataURL()")
    return address


def radio(page: Page, parameter: str, name: str) -> Locator:
    """A choice of a parameter of the map."""
    return page.locator(f".vx-parameter[data-name={parameter}]").get_by_label(name, exact=True)


def slider(page: Page, parameter: str) -> Locator:
    return page.locator(f".vx-parameter[data-name={parameter}] input[type=range]")


def panel(page: Page, title: str) -> None:
    """Open one of the panels beside the picture."""
    summary = page.locator("details.vx-panel > summary", has_text=title)
    if not summary.evaluate("summary => summary.parentElement.open"):
        summary.click()
