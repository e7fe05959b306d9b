"""The command ``vitviz components``: what is alike in pictures, or in the frames of a clip, in one colour."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vitviz.cli.checkpoints import load_with_bar
from vitviz.cli.output import check_output, note, show
from vitviz.cli.pictures import analysis_of, find_pictures, take_settings
from vitviz.features import Kind, components


def run(
    images: Sequence[str],
    output: Path,
    layer: int | None,
    of: Kind,
    foreground: bool,
    opacity: float,
    squares: bool,
    **options: Any,
) -> None:
    """Write the colours of all pictures, side by side."""
    pictures, settings = find_pictures(images), take_settings(options)
    check_output(output, images[0])
    model = load_with_bar(**options)
    analyses = [analysis_of(picture, model, **settings) for picture in pictures]
    maps = components(analyses, layer, of=of, foreground=foreground)
    maps.save(output, opacity, not squares)
    show(maps.description)
    note(f"written to {output}")
