"""Gradio without the stubs that it writes beside the file of every component: they take half the time of its import."""

from __future__ import annotations

import importlib
import inspect
import sys
import warnings
from typing import Any

WRITES_STUBS = "create_or_modify_pyi"


def import_gradio() -> None:
    """Import it; no stub is written, now or for components that are made later."""
    functions: Any = inspect
    find_file = inspect.getfile

    def getfile(thing: Any) -> str:
        # What writes stubs takes this for a component that is in no file.
        if sys._getframe(1).f_code.co_name == WRITES_STUBS:
            raise OSError
        return find_file(thing)

    functions.getfile = getfile
    try:
        with warnings.catch_warnings():
            # In a notebook, what draws the bars of downloads asks for a package that nothing here needs.
            warnings.filterwarnings("ignore", "IProgress not found")
            modules = [importlib.import_module(f"gradio.{name}") for name in ("component_meta", "blocks_events")]
    finally:
        functions.getfile = find_file
    for module in modules:
        setattr(module, WRITES_STUBS, lambda *description: None)
