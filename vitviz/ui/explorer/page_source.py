"""The files that the page is made of, as text."""

from __future__ import annotations

from functools import cache
from pathlib import Path

HERE = Path(__file__).parent


@cache
def template(name: str) -> str:
    """The text of a file of this package."""
    return (HERE / name).read_text()


@cache
def script() -> str:
    """The page's code as one function body: the files of ``js/order.txt``, which has one name per line."""
    names = [name.strip() for name in template("js/order.txt").splitlines() if name.strip()]
    return "\n".join(template(f"js/{name.removesuffix('.js')}.js") for name in names)
