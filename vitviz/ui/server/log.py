"""What the server logs of a request: at most one line, without its content."""

from __future__ import annotations

import logging
import sys
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any

LOGGER = logging.getLogger("vitviz.server")
FRAMES = 4
# Where Gradio prints what a request made it raise, or a part of the request itself.
PRINTING = ("gradio.queueing", "gradio.routes", "gradio.route_utils", "gradio.processing_utils", "gradio.mcp")


def place_of(error: BaseException) -> str:
    """What was raised and where, without its message, which may quote the request."""
    frames = traceback.extract_tb(error.__traceback__)[-FRAMES:]
    places = [f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames]
    return " > ".join([*places, type(error).__name__])


class _OneLine:
    """Stands for the module ``traceback`` in Gradio: what it would print is one line of the log."""

    def print_exc(self, *_: Any, **__: Any) -> None:
        error = sys.exc_info()[1]
        if error is not None:
            LOGGER.error("an event failed: %s", place_of(error))

    def __getattr__(self, name: str) -> Any:
        return getattr(traceback, name)


def quieten_gradio() -> None:
    """Have Gradio print nothing of a request."""
    for name in PRINTING:
        try:
            module: Any = import_module(name)
        # The server for tools is an extra.
        except ImportError:
            continue
        module.print = lambda *_, **__: None
        if hasattr(module, "traceback"):
            module.traceback = _OneLine()
