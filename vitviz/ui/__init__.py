"""The browser app: :func:`build_demo` makes it, :func:`serve` launches it."""

import os

from vitviz.ui.stubs import import_gradio

# Gradio reads this while it is imported.
os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
import_gradio()

from vitviz.ui.launch import launch_options, serve  # noqa: E402
from vitviz.ui.page import build_demo  # noqa: E402

__all__ = ["build_demo", "launch_options", "serve"]
