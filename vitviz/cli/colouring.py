"""The command ``vitviz components``: what is alike in pictures, or in the frames of a clip."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from vitviz.attention.layout import Query
from vitviz.cli.checkpoints import load_with_bar
from vitviz.cli.picture_files import (
    analysis_of,
    check_picture,
    find_pictures,
    take_settings,
    write_figure,
    write_picture,
)
from vitviz.cli.printing import check_output, note, reporting, show
from vitviz.errors.kinds import ConfigError
from vitviz.features import Kind, components
from vitviz.video.clips import CLIP_SUFFIXES
from vitviz.video.component_clips import film_components
from vitviz.video.writing import CONTAINERS
from vitviz.visualization.heatmaps import Style
from vitviz.visualization.panels import figure


def run(
    images: Sequence[str],
    output: Path | None,
    layer: int | None,
    of: Kind,
    foreground: bool,
    query: Query | None,
    opacity: float,
    squares: bool,
    **options: Any,
) -> None:
    """Write the colours of all pictures, side by side, or of a clip; or how alike they are to one token.

    Raises:
        ConfigError: a token is given for a clip or for the foreground, a range of values is given for a clip, or the
            output cannot be written.
    """
    pictures, settings = find_pictures(images), take_settings(options)
    output = output or Path(f"components.{'mp4' if Path(images[0]).suffix.lower() in CLIP_SUFFIXES else 'png'}")
    is_film = len(images) == 1 and output.suffix.lower() in CONTAINERS
    if query is not None and (is_film or foreground):
        raise ConfigError("--query: expected images, and no --foreground, which is of components")
    if is_film and settings["value_range"]:
        raise ConfigError("--value-range: expected images; the frames of a clip have the values of their format")
    for each in images:
        (check_output if is_film else check_picture)(output, each)
    look: dict[str, Any] = {"opacity": opacity, "smooth": not squares}
    model = load_with_bar(**options)
    if is_film:
        with reporting(desc="Frames", unit=" frames") as report:
            description = film_components(
                Path(images[0]),
                model,
                output,
                layer,
                of=of,
                foreground=foreground,
                report=report,
                **{name: settings[name] for name in ("fit", "resolution", "color_profile", "max_bytes")},
                **look,
            )
    else:
        analyses = [analysis_of(picture, model, **settings) for picture in pictures]
        if not all(each.prepared.geometry.is_whole for each in analyses):
            note("dim parts of pictures are outside of the model's input; --fit native has all of them in it")
        if query is None:
            colours = components(analyses, layer, of=of, foreground=foreground)
            write_picture(output, partial(colours.overlay, **look), partial(colours.save, **look))
            description = colours.description
        else:
            maps = [analyses[0].similarity(query, each, layer, of) for each in analyses]
            # Marked is what is most like the token: a patch itself, in its own picture.
            marks = [each.token_map.strongest for each in maps]
            write_figure(output, figure(maps, Style(**look, fade=True, drain=True), marks=marks))
            description = maps[-1].description
    show(description)
    note(f"written to {output}")
