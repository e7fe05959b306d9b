"""The page's own files: its HTML, its styles, and its code as one module."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from vitviz.visualization.templates import fill_template

HERE = Path(__file__).parent


@cache
def template(name: str) -> str:
    """The text of a file of this package."""
    return (HERE / name).read_text()


@cache
def script() -> str:
    """The page's code as one module: the files of ``js/order.txt``, which has one name per line."""
    names = [name.strip() for name in template("js/order.txt").splitlines() if name.strip()]
    return "\n".join(template(f"js/{name.removesuffix('.js')}.js") for name in names)


@cache
def style() -> str:
    """The page's styles."""
    return f"{template('page.css')}\n{template('explorer.css')}"


def document(start: Any, **values: str) -> str:
    """The page's HTML.

    Args:
        start: JSON with which the page begins.
        values: of the other placeholders of ``page.html``, which are not escaped.
    """
    # A JSON block ends at the first closing tag.
    block = json.dumps(start).replace("<", "\\u003c")
    return fill_template(template("page.html"), {"start": block, "template": template("explorer.html"), **values})
