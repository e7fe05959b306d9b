"""The command ``vitviz components``: what is alike in pictures, or in the frames of a clip, in one colour."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vitviz.cli.checkpoints import load_with_bar
from vitviz.cli.output import check_output, note, reporting, show
from vitviz.cli.pictures import analysis_of, find_pictures, take_settings
from vitviz.features import Kind, components
from vitviz.video.clips import CLIP_SUFFIXES
from vitviz.video.components import film_components
from vitviz.video.writing import CONTAINERS


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
    """Write the colours of all pictures, side by side, or of a clip."""
    pictures, settings = find_pictures(images), take_settings(options)
    check_output(output, images[0])
    kind: dict[str, Any] = {"of": of, "foreground": foreground}
    model = load_with_bar(**options)
    if len(images) == 1 and Path(images[0]).suffix.lower() in CLIP_SUFFIXES and output.suffix.lower() in CONTAINERS:
        look: dict[str, Any] = {
            "opacity": opacity,
            "smooth": not squares,
            "fit": settings["fit"],
            "resolution": settings["resolution"],
        }
        with reporting(desc="Frames", unit=" frames") as report:
            show(film_components(Path(images[0]), model, output, layer, **kind, **look, report=report))
    else:
        maps = components([analysis_of(picture, model, **settings) for picture in pictures], layer, **kind)
        maps.save(output, opacity, not squares)
        show(maps.description)
    note(f"written to {output}")
