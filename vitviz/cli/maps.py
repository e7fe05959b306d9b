"""The commands of the methods: a map of every picture, as a picture, as numbers or as JSON."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from vitviz.analysis.analysis import Analysis
from vitviz.attention.precision import Precision
from vitviz.attribution import METHODS
from vitviz.attribution.methods import MethodName
from vitviz.cli.checkpoints import load_with_bar
from vitviz.cli.picture_files import Picture, analysis_of, check_picture, for_each, is_one, take_settings, write_picture
from vitviz.cli.printing import STANDARD, note, reporting
from vitviz.cli.target_options import take_target, target_of
from vitviz.errors.kinds import ConfigError
from vitviz.visualization.colormaps import ColormapName
from vitviz.visualization.heatmaps import Heatmap, Style
from vitviz.visualization.scales import ScaleName


def run(
    method: MethodName,
    images: Sequence[str],
    output: str | None,
    json: bool,
    checkpoint: str,
    family: str | None,
    overrides: list[str],
    device: str,
    precision: Precision,
    colormap: ColormapName,
    opacity: float,
    smooth: bool,
    grid: bool,
    scale: ScaleName | None,
    percentiles: Sequence[float] | None,
    **parameters: Any,
) -> int:
    """Write a map of every picture; the exit status says whether some failed."""
    style = style_of(scale, percentiles, colormap=colormap, opacity=opacity, smooth=smooth, grid=grid)
    record = METHODS[method]
    given = take_target(parameters) if record.class_specific else None
    settings = take_settings(parameters)
    # Check the paths before the model is loaded.
    path_of = result_paths(images, output, f".{method}.png", json)
    model = load_with_bar(checkpoint, family, overrides, device, precision)
    mark = parameters.get("query")

    def work(picture: Picture) -> dict[str, Any] | None:
        path = path_of(picture)
        analysis = analysis_of(picture, model, **settings)
        target: dict[str, Any] = {} if given is None else {"target": target_of(given, analysis, **settings)}
        with reporting(desc=record.title, disable=not record.reports) as report:
            heatmap = analysis.map(method, report=report, **parameters, **target)
        if not json:
            note(heatmap.caption(style))
        write_map(heatmap, path, style, mark if isinstance(mark, tuple) else None)
        return _record(analysis, method, heatmap) if json else None

    return for_each(images, work, json)


def style_of(scale: ScaleName | None, percentiles: Sequence[float] | None, **look: Any) -> Style:
    """The style of the options of a command; percentiles alone ask for a robust scale.

    Raises:
        ConfigError: percentiles are given with another scale.
        MethodError: a value is out of range.
    """
    if percentiles is None:
        return Style(scale=scale, **look)
    if scale not in (None, "robust"):
        raise ConfigError(f"--percentiles: the ends of a robust scale; expected --scale robust, or none, not {scale}")
    return Style(scale="robust", percentiles=(percentiles[0], percentiles[1]), **look)


def result_paths(
    images: Sequence[str], output: str | None, suffix: str, json: bool
) -> Callable[[Picture], Path | None]:
    """The function from a picture to the path of its result, which is None if there is none.

    Raises:
        ConfigError: the output is that of one picture, but there are several, or it cannot be written.
    """
    if output is None:
        return lambda picture: None if json else picture.result(None, suffix)
    folder = Path(output)
    is_file = output == STANDARD or folder.suffix or folder.exists()
    if folder.is_dir() or output.endswith(os.sep) or not is_file:
        return lambda picture: picture.result(folder, suffix)
    if not is_one(images):
        raise ConfigError(f"{output}: one file for several pictures; expected a folder, such as -o maps")
    check_picture(folder, images[0], numbers=True)
    if output == STANDARD and json:
        raise ConfigError("-o - and --json both write to the standard output; expected one of them")
    return lambda picture: folder


def write_map(heatmap: Heatmap, path: Path | None, style: Style, mark: tuple[int, int] | None = None) -> None:
    """Write a map, if there is a path for it, into a file, or as PNG into a stream."""
    if path is not None:
        write_picture(path, partial(heatmap.overlay, style, mark), partial(heatmap.save, style=style, mark=mark))
        if str(path) != STANDARD:
            note(f"written to {path}")


def _record(analysis: Analysis, method: str, heatmap: Heatmap) -> dict[str, Any]:
    """What ``--json`` prints of a map; the names are those of the app's API."""
    token_map, geometry = heatmap.token_map, heatmap.geometry
    return {
        "model": analysis.model.name,
        "size": [geometry.image_width, geometry.image_height],
        "box": geometry.box,
        "method": method,
        "description": token_map.description,
        "quantity": token_map.quantity,
        "values": token_map.values,
        "prefix": token_map.prefix,
        "range": token_map.range,
        "domain": token_map.domain,
        "predictions": [vars(each) for each in analysis.predictions()] if analysis.model.gives_probabilities else [],
    }
