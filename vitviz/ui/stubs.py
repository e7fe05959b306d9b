"""Importing Gradio without writing its stub files, which takes half the time of the import."""

from __future__ import annotations

import importlib
import inspect
import sys
import warnings
from typing import Any

WRITES_STUBS = "create_or_modify_pyi"


def import_gradio() -> None:
    """Import Gradio; no stub is written now, or for components that are defined later."""
    functions: Any = inspect
    find_file = inspect.getfile

    def getfile(component: Any) -> str:
        # To the writer of stubs, a component without a file has nowhere to put one.
        if sys._getframe(1).f_code.co_name == WRITES_STUBS:
            raise OSError
        return find_file(component)

    functions.getfile = getfile
    try:
        with warnings.catch_warnings():
            # In a notebook, tqdm asks for ipywidgets, which nothing here needs.
            warnings.filterwarnings("ignore", "IProgress not found")
            modules = [importlib.import_module(f"gradio.{name}") for name in ("component_meta", "blocks_events")]
    finally:
        functions.getfile = find_file
    for module in modules:
        setattr(module, WRITES_STUBS, lambda *description: None)
