"""The browser app: :func:`build_demo` makes it, :func:`serve` launches it."""

import os

# Gradio reads this while it is imported.
os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")

from vitviz.ui.launch import launch_options, serve
from vitviz.ui.page import build_demo

__all__ = ["build_demo", "launch_options", "serve"]
