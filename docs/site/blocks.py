"""What the site shows beside the Markdown of docs/: live explorers, the API, and the order of the pages.

Each stands in the Markdown as a comment, which is nothing on other hosts:

- ``<!-- explorer: NAME -->`` above a command ``vitviz explore … -o NAME``: the command is run, and its page is shown.
- ``<!-- api -->``: every public name, with its signature and docstring.
- ``<!-- pages -->`` above a list of links: the list is a part of the navigation, too, under the heading above it.
"""

from __future__ import annotations

import contextlib
import html
import io
import os
import re
import shlex
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
EXPLORERS = ROOT / "build" / "explorers" / "explorers"
EXPLORER = re.compile(r"<!-- explorer: (?P<title>[^>\n]+) -->\n\n {4}vitviz (?P<command>explore [^\n]+)\n")
PAGES = re.compile(
    r"^## (?P<heading>.+)\n(?P<text>(?:(?!^## )[\s\S])*?)<!-- pages -->\n(?P<list>(?:- .+\n)+)", re.MULTILINE
)
LINK = re.compile(r"\]\((?P<page>[\w./-]+)\.md\)")
HEIGHT = 720
# The network at stages of its training, which `python -m docs.site.stages` writes.
STAGES = "build/stages"


@dataclass(frozen=True)
class Block:
    """An explorer in a page: what it is called, and the command that writes it.

    Args:
        title: what it shows, for those who cannot see it.
        arguments: of the command ``vitviz``.
        name: of the file that it writes.
    """

    title: str
    arguments: tuple[str, ...]
    name: str


def explorers(markdown: str) -> list[Block]:
    """The explorers of a document, in its order.

    Raises:
        ValueError: a command names no file, or one in a folder.
    """
    found = []
    for match in EXPLORER.finditer(markdown):
        arguments = tuple(shlex.split(match["command"]))
        if arguments[-2] != "-o" or not re.fullmatch(r"[\w-]+\.html", arguments[-1]):
            raise ValueError(f"{match['command']}: expected the option -o NAME.html at the end")
        found.append(Block(match["title"], arguments, arguments[-1]))
    return found


def navigation(markdown: str) -> list[tuple[str, list[str]]]:
    """The sections of the home page with the names of their pages, relative to it."""
    return [
        (match["heading"], [link["page"] for link in LINK.finditer(match["list"])])
        for match in PAGES.finditer(markdown)
    ]


def write_explorer(block: Block, folder: Path) -> None:
    """Run a block's command, from the root of the repository.

    Raises:
        ValueError: it fails.
    """
    from vitviz.cli import main

    folder.mkdir(parents=True, exist_ok=True)
    if any(argument.startswith(STAGES) for argument in block.arguments):
        _write_stages()
    arguments = [*block.arguments[:-1], str(folder / block.name)]
    before, said = Path.cwd(), io.StringIO()
    os.chdir(ROOT)
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            status = main(arguments)
    finally:
        os.chdir(before)
    if status:
        raise ValueError(f"vitviz {shlex.join(block.arguments)}: {said.getvalue()}")


@cache
def _write_stages() -> None:
    # Once in a process: the bundled checkpoint may have changed since the last.
    from docs.site.stages import write

    write(ROOT / STAGES)


def _frame(block: Block, to_root: str) -> str:
    address, title = f"{to_root}explorers/{block.name}", html.escape(block.title)
    return (
        f'<figure class="explorer"><iframe src="{address}" title="{title}" height="{HEIGHT}" loading="lazy" '
        f'sandbox="allow-scripts allow-downloads"></iframe>\n<figcaption>{title}. <a href="{address}">In a page of its '
        "own</a>; made by:</figcaption></figure>\n"
    )


def _api() -> str:
    import inspect

    import vitviz

    names = [name for name in vitviz.__all__ if name != "METHODS"]
    errors = [name for name in names if name.endswith("Error")]
    functions = [name for name in names if inspect.isfunction(getattr(vitviz, name))]
    classes = [name for name in names if name not in (*errors, *functions)]
    parts = []
    for heading, members in (("Functions", functions), ("Classes", classes), ("Errors", errors)):
        directives = "\n\n".join(
            f".. auto{'function' if name in functions else 'class'}:: vitviz.{name}" for name in members
        )
        parts.append(f"## {heading}\n\n```{{eval-rst}}\n{directives}\n```\n")
    return "\n".join(parts)


def _read(app: Any, docname: str, source: list[str]) -> None:
    """Put what the comments stand for into a page of the site."""
    text = source[0]
    to_root = "../" * docname.count("/")
    blocks = {block.name: block for block in explorers(text)}
    for block in blocks.values():
        write_explorer(block, EXPLORERS)

    def framed(match: re.Match[str]) -> str:
        block = blocks[shlex.split(match["command"])[-1]]
        return f"{_frame(block, to_root)}\n```sh\nvitviz {match['command']}\n```\n"

    text = EXPLORER.sub(framed, text)
    text = text.replace("<!-- api -->\n", _api())
    if docname == app.config.root_doc:
        # A page cannot be in two places, but its tree may be anywhere in the page.
        for heading, pages in navigation(source[0]):
            listed = "\n".join(pages)
            text += f"\n```{{toctree}}\n:hidden:\n:caption: {heading}\n\n{listed}\n```\n"
    source[0] = text


def setup(app: Any) -> dict[str, Any]:
    """As Sphinx asks for it."""
    EXPLORERS.mkdir(parents=True, exist_ok=True)
    app.connect("source-read", _read)
    return {"parallel_read_safe": False, "parallel_write_safe": True}
