"""The page's files in ``vitviz/ui/page``: its HTML, its styles, and its modules as one."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from posixpath import dirname, join, normpath
from typing import Any

from vitviz.ui.image_bytes import as_base64
from vitviz.visualization.templates import fill_template

# The modules with which the page and its workers begin.
ENTRIES = ("start.js", "device/analysis_worker.js", "device/device_worker.js")
FOLDER = Path(__file__).parent.parent / "page"
IMPORT = re.compile(r'^import \{[^}]*\} from "(\.\.?/[\w/]+\.js)";\n', re.MULTILINE)
EXPORT = re.compile(r"^export (?=async |class |const |function |let )", re.MULTILINE)


@cache
def template(name: str) -> str:
    """The text of a file of the page."""
    return (FOLDER / name).read_text(encoding="utf-8")


@cache
def script(entry: str = "start.js") -> str:
    """A module and all that it imports as one module: a saved file carries it, and a browser fetches it at once.

    Tests check what it takes for granted: top-level names are unique, no modules import in a circle, and all import as
    ``import { … } from "./….js"`` and export declarations.
    """
    parts = [EXPORT.sub("", IMPORT.sub("", template(name))).strip() for name in modules(entry)]
    return "\n\n".join(parts) + "\n"


def modules(entry: str) -> list[str]:
    """The modules in the order in which a browser evaluates them: each after those that it imports."""
    order: list[str] = []

    def visit(name: str) -> None:
        if name not in order:
            for imported in IMPORT.findall(template(name)):
                visit(normpath(join(dirname(name), imported)))
            order.append(name)

    visit(entry)
    return order


@cache
def style() -> str:
    """The page's styles, with the typeface, whose licence lies beside it (SIL Open Font License 1.1)."""
    face = as_base64((FOLDER / "instrument-sans.woff2").read_bytes())
    source = f"url(data:font/woff2;base64,{face}) format('woff2')"
    font = f"@font-face {{ font-family: 'Instrument Sans'; font-weight: 400 700; font-display: swap; src: {source}; }}"
    return f"{font}\n{template('page.css')}\n{template('explorer.css')}"


def json_block(value: Any) -> str:
    """JSON inside of a script's element, which would end at the first closing tag."""
    return json.dumps(value).replace("<", "\\u003c")


def document_around(**values: str) -> tuple[str, str]:
    """The page's HTML before and after the JSON with which it begins.

    Args:
        values: of the other placeholders of ``page.html``, which are not escaped.
    """
    before, _, after = template("page.html").partition("@start@")
    filled = {"template": template("explorer.html"), **values}
    return fill_template(before, filled), fill_template(after, filled)
