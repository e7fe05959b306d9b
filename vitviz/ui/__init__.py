"""The browser app: :func:`build_demo` makes it, :func:`serve` launches it. The app needs the extra ``app``."""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from vitviz.errors.extras import extra

if TYPE_CHECKING:
    from vitviz.ui.launch import launch_options, serve
    from vitviz.ui.page import build_demo

__all__ = ["build_demo", "launch_options", "serve"]

# Gradio reads this while it is imported.
os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
_MODULES = {"build_demo": "page", "launch_options": "launch", "serve": "launch"}


def __getattr__(name: str) -> Any:
    """A function of the app, which imports Gradio; the explorer of a notebook and saved pages need none."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with extra("app", "the app", "gradio"):
        from vitviz.ui.stubs import import_gradio

        import_gradio()
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
