"""Writes the gallery as a static Space: ``make gallery``. What is in it, docs/gallery.md says."""

from __future__ import annotations

import html
import re
import shutil
from pathlib import Path

import vitviz
from docs.site.blocks import EXPLORER, ROOT, Block, explorers, write_explorer

FOLDER = ROOT / "build" / "gallery"
# Each explorer is loaded alone; the one with the network inside takes a quarter.
MAX_BYTES = 70_000_000
FRONT_MATTER = """---
title: vitviz gallery
emoji: 🔍
colorFrom: indigo
colorTo: purple
sdk: static
app_file: index.html
pinned: false
license: apache-2.0
short_description: What a Vision Transformer attends to, in twelve pictures
tags:
  - vision-transformer
  - attention
  - visualization
---
"""
STYLE = """
:root { color-scheme: light dark; }
body { margin: 0; font: 16px system-ui, sans-serif; display: grid; grid-template-columns: 22rem 1fr; min-height: 100vh;
  background: light-dark(#fff, #0f172a); color: light-dark(#1e293b, #e2e8f0); }
nav { padding: 1rem; overflow-y: auto; max-height: 100vh; box-sizing: border-box; }
nav a { color: light-dark(#4338ca, #a5b4fc); font-weight: 600; }
nav p { margin: 0.2rem 0 0.9rem; font-size: 0.9rem; }
iframe { width: 100%; height: 100vh; border: 0; }
@media (max-width: 800px) {
  body { display: flex; flex-direction: column; }
  iframe { order: -1; height: 65vh; position: sticky; top: 0; border-bottom: 2px solid light-dark(#4338ca, #a5b4fc); }
  nav { max-height: none; }
}
"""


def pieces(markdown: str) -> list[tuple[str, str, Block]]:
    """Title, sentence and explorer of each section."""
    found = []
    for section in re.split(r"^## ", markdown, flags=re.MULTILINE)[1:]:
        title, _, rest = section.partition("\n")
        text = rest[: EXPLORER.search(rest).start()].split("\n\n")[0].strip()  # type: ignore[union-attr]
        (block,) = explorers(section)
        found.append((title, text, block))
    return found


def index(found: list[tuple[str, str, Block]]) -> str:
    """The page with all of them, which needs no script."""
    entries = "\n".join(
        f'<a href="{block.name}" target="explorer">{html.escape(title)}</a>\n<p>{html.escape(text)}</p>'
        for title, text, block in found
    )
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>vitviz gallery</title>\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<style>{STYLE}</style>\n</head>\n'
        f"<body>\n<nav>\n<h1>What a Vision Transformer attends to</h1>\n{entries}\n</nav>\n"
        f'<iframe name="explorer" title="Explorer" src="{found[0][2].name}"></iframe>\n</body>\n</html>\n'
    )


def main() -> None:
    """Write the folder anew.

    Raises:
        ValueError: it has become too large for a Space to be pleasant.
    """
    found = pieces((ROOT / "docs" / "gallery.md").read_text())
    shutil.rmtree(FOLDER, ignore_errors=True)
    for _, _, block in found:
        write_explorer(block, FOLDER)
    (FOLDER / "index.html").write_text(index(found), encoding="utf-8")
    credits = (ROOT / "assets" / "README.md").read_text().partition("\n")[2].split("\n\n`screenshot")[0]
    about = f"Made by vitviz {vitviz.__version__} with `make gallery`. The photographs:\n{credits}\n"
    (FOLDER / "README.md").write_text(f"{FRONT_MATTER}\n# vitviz gallery\n\n{about}", encoding="utf-8")
    size = sum(path.stat().st_size for path in FOLDER.iterdir())
    if size > MAX_BYTES:
        raise ValueError(f"{FOLDER}: {size / 1e6:.1f} MB; expected at most {MAX_BYTES / 1e6:.0f}")
    print(f"{len(found)} explorers, {size / 1e6:.1f} MB\nwritten to {Path(FOLDER).relative_to(ROOT)}")


if __name__ == "__main__":
    main()
