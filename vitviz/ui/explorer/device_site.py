"""The page that runs networks on the visitor's device as a folder, which any static host serves."""

from __future__ import annotations

from pathlib import Path

from vitviz.ui.explorer.device_page import ABOUT, DevicePage

README = """---
title: vitviz
emoji: 🔍
colorFrom: indigo
colorTo: purple
sdk: static
app_file: index.html
pinned: false
short_description: See where an image-recognition model looks
tags:
  - vision-transformer
  - attention
  - visualization
---

# vitviz

{about}

The page runs {models} in the visitor's own browser: pictures stay on the visitor's device. It needs no server but one
that sends files:

- as a static Space of the Hugging Face hub, upload this folder; the lines at the top of this file say the rest;
- on any other host, copy it there;
- on your own machine, `python -m http.server` in this folder, then open http://localhost:8000. From disk, browsers do
  not let a page read the files beside it.

Written by `vitviz site`. The weights have licences of their own.
"""


def write_site(page: DevicePage, folder: Path) -> int:
    """Write the page and what it loads, with a README that makes the folder a static Space; returns the bytes.

    Args:
        page: as :func:`vitviz.ui.explorer.device_page.device_page` makes it.
        folder: is made, or empty.
    """
    names = [record["title"] for record in page.start["device"]["models"].values()]
    models = " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
    files = {**page.as_folder(), "README.md": README.format(about=ABOUT, models=models).encode()}
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return sum(map(len, files.values()))
