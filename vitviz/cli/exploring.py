"""The command ``vitviz explore``, which writes the explorer of a picture as one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vitviz.cli.checkpoints import load_with_bar
from vitviz.cli.output import check_output, note, write_whole
from vitviz.cli.pictures import analysis_of, find_picture, take_settings


def run(
    image: str,
    output: Path | None,
    link: str,
    **options: Any,
) -> None:
    """Write the explorer of a picture."""
    picture = find_picture(image)
    output = output or picture.result(None, ".html")
    check_output(output, image)
    settings = take_settings(options)
    analysis = analysis_of(picture, load_with_bar(**options), **settings)
    # It takes long to import, so a wrong path or option is refused first.
    from vitviz.ui.explorer.saved_page import whole_page

    link = link.partition("?")[2] if "://" in link else link
    place = {"source": options["checkpoint"], "name": picture.name, "link": link}
    place |= {"fit": settings["fit"] or "", "resolution": settings["resolution"]}
    page = whole_page(analysis, picture.name, **place)
    write_whole(output, lambda file: file.write(page.encode()))
    note(f"All layers and heads, {len(page) / 1e6:.1f} MB\nwritten to {output}")
