"""The server's log: at most one line per request, without its content."""

from __future__ import annotations

import logging
import sys
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any

LOGGER = logging.getLogger("vitviz.server")
# What a visitor reads about an unexpected error.
INTERNAL_ERROR = "The server failed to answer this request; what happened is in its log."
FRAMES = 4
# Modules of Gradio that print errors, or parts of a request.
PRINTING = ("gradio.queueing", "gradio.routes", "gradio.route_utils", "gradio.processing_utils", "gradio.mcp")


def place_of(error: BaseException) -> str:
    """Place and type of an error, without its message, which may quote the request."""
    frames = traceback.extract_tb(error.__traceback__)[-FRAMES:]
    places = [f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames]
    return " > ".join([*places, type(error).__name__])


class _OneLine:
    """Replaces the module ``traceback`` in Gradio: an error becomes one line of the log."""

    def print_exc(self, *_: Any, **__: Any) -> None:
        error = sys.exc_info()[1]
        if error is not None:
            LOGGER.error("an event failed: %s", place_of(error))

    def __getattr__(self, name: str) -> Any:
        return getattr(traceback, name)


def quieten_gradio() -> None:
    """Keep Gradio from printing anything of a request."""
    for name in PRINTING:
        try:
            module: Any = import_module(name)
        # MCP is an extra.
        except ImportError:
            continue
        module.print = lambda *_, **__: None
        if hasattr(module, "traceback"):
            module.traceback = _OneLine()


def log_unexpected(where: str, error: Exception) -> None:
    """Log type and place of an unexpected error, and nothing that a visitor sent."""
    LOGGER.error("%s: %s", where, place_of(error))
