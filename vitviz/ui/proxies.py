"""Proxies of the environment."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_proxies() -> Iterator[None]:
    """A context in which Gradio sees no proxy: it asks this machine alone, and one of SOCKS would end its import."""
    names = [name for name in os.environ if name.lower() in ("http_proxy", "https_proxy", "all_proxy")]
    proxies = {name: os.environ.pop(name) for name in names}
    try:
        yield
    finally:
        os.environ.update(proxies)
