"""The browser app: :func:`build_demo` makes it, :func:`serve` launches it. The app needs the extra ``app``."""

import os
import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

from vitviz.errors.extras import optional
from vitviz.ui.environment import hidden_environment

if TYPE_CHECKING:
    from vitviz.ui.app import build_demo
    from vitviz.ui.launch import serve

__all__ = ["build_demo", "serve"]

# Gradio reads this while it is imported.
os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
_MODULES = {"build_demo": "app", "serve": "launch"}


def __getattr__(name: str) -> Any:
    """A function of the app, which imports Gradio; the explorer of a notebook and saved pages need none."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with optional("the app"), warnings.catch_warnings(), hidden_environment():
        # In a notebook, tqdm asks for ipywidgets, which nothing here needs.
        warnings.filterwarnings("ignore", "IProgress not found")
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
