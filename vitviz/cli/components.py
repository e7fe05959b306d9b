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
from vitviz.visualization.saving import check_ending


def run(
    images: Sequence[str],
    output: Path | None,
    layer: int | None,
    of: Kind,
    foreground: bool,
    opacity: float,
    squares: bool,
    **options: Any,
) -> None:
    """Write the colours of all pictures, side by side, or of a clip."""
    pictures, settings = find_pictures(images), take_settings(options)
    is_clip = len(images) == 1 and Path(images[0]).suffix.lower() in CLIP_SUFFIXES
    output = output or Path("components.mp4" if is_clip else "components.png")
    is_film = is_clip and output.suffix.lower() in CONTAINERS
    check_output(output, images[0])
    if not is_film:
        check_ending(output)
    kind: dict[str, Any] = {"of": of, "foreground": foreground}
    model = load_with_bar(**options)
    if is_film:
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
