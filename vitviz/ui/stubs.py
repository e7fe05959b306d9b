"""Importing Gradio: without its stub files, which take half the time of the import, and without proxies."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

WRITES_STUBS = "create_or_modify_pyi"


@contextmanager
def without_proxies() -> Iterator[None]:
    """A context in which Gradio sees no proxy: it asks this machine alone, and one of SOCKS would end its import."""
    names = [name for name in os.environ if name.lower() in ("http_proxy", "https_proxy", "all_proxy")]
    proxies = {name: os.environ.pop(name) for name in names}
    try:
        yield
    finally:
        os.environ.update(proxies)


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
        with warnings.catch_warnings(), without_proxies():
            # In a notebook, tqdm asks for ipywidgets, which nothing here needs.
            warnings.filterwarnings("ignore", "IProgress not found")
            modules = [importlib.import_module(f"gradio.{name}") for name in ("component_meta", "blocks_events")]
    finally:
        functions.getfile = find_file
    for module in modules:
        setattr(module, WRITES_STUBS, lambda *description: None)
