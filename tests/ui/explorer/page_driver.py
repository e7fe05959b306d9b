"""The explorer in a browser: what it shows, what it computes, and apps of small networks to open it with."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from playwright.sync_api import Locator, Page

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
SHAPES = {"cifar": (32, 32, 0, 4), "base": (56, 56, 0, 4), "registers": (24, 40, 4, 4), "large": (148, 148, 0, 4)}


def made(height: int, width: int, registers: int, patch: int, layers: int = LAYERS, **changes: Any) -> Model:
    """A small network with random weights that sees the middle of a picture; ``changes`` are of its configuration."""
    torch.manual_seed(0)
    shape = {"width": 16, "depth": layers, "heads": HEADS, "head_width": 8, "mlp_width": 16, "classes": 3}
    config = ViTConfig(height, width, patch, patch, **{**shape, "register_tokens": registers, **changes})
    network = VisionTransformer(config).eval().requires_grad_(False)
    for parameter in network.parameters():
        parameter.normal_(0, 0.7)
    preprocessing = Preprocessing(height, width, (0.5,) * 3, (0.5,) * 3, "crop")
    return Model("small", network, preprocessing, ("a", "b", "c")[: config.classes])


MODELS: dict[str, Callable[[], Model]] = {
    **{name: partial(made, *shape) for name, shape in SHAPES.items()},
    # Of so few patches that all maps with all their scores are soon there.
    "tiny": partial(made, 24, 24, 0, 4),
    "classes": partial(made, 32, 32, 1, 4),
    "features": partial(made, 32, 32, 1, 4, classes=0, cls_token=False, pooling="mean"),
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
    # Not one that Gradio looks for: another app of these tests may take it meanwhile.
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = serve(app, block=False, quiet=True, server_port=port)
    try:
        yield SmallApp(address, app, model)
    finally:
        close(app)


def pixels(canvas: Locator) -> str:
    address: str = canvas.evaluate("canvas => canvas.toDataURL()")
    return address


def slider(page: Page, parameter: str) -> Locator:
    return page.locator(f".vx-parameter[data-name={parameter}] input[type=range]")
