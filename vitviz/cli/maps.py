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
from vitviz.cli.output import STANDARD, check_output, is_stream, make_folder, note, reporting, write_whole
from vitviz.cli.pictures import Picture, analysis_of, for_each, is_one, take_settings
from vitviz.cli.predicting import best_classes
from vitviz.cli.targets import take_target, target_of
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
    percentiles: Sequence[float],
    **parameters: Any,
) -> int:
    """Write a map of every picture; the exit status says whether some failed."""
    low, high = percentiles
    style = Style(colormap, opacity, smooth, grid, scale=scale, percentiles=(low, high))
    given = take_target(parameters) if METHODS[method].class_specific else None
    settings = take_settings(parameters)
    # Check the paths before the model is loaded.
    path_of = _paths(images, output, f".{method}.png", json)
    model = load_with_bar(checkpoint, family, overrides, device, precision)
    mark = parameters.get("query")

    def work(picture: Picture) -> dict[str, Any] | None:
        path = path_of(picture)
        analysis = analysis_of(picture, model, **settings)
        target = {} if given is None else {"target": target_of(given, analysis, **settings)}
        heatmap = _map_of(analysis, method, **parameters, **target)
        if path is not None:
            _write(heatmap, path, style, mark if isinstance(mark, tuple) else None)
        if not json:
            note(heatmap.caption(style))
        if path is not None and str(path) != STANDARD:
            note(f"written to {path}")
        return _record(analysis, method, heatmap) if json else None

    return for_each(images, work, json)


def _paths(images: Sequence[str], output: str | None, suffix: str, json: bool) -> Callable[[Picture], Path | None]:
    """The function from a picture to the path of its result, which is None if there is none.

    Raises:
        ConfigError: the output is that of one picture, but there are several, or it cannot be written.
    """
    if output is None:
        return lambda picture: None if json else picture.result(None, suffix)
    folder = Path(output)
    if is_one(images) and not folder.is_dir() and not output.endswith(os.sep):
        check_output(folder, images[0])
        if output == STANDARD and json:
            raise ConfigError("-o - and --json both write to the standard output; expected one of them")
        return lambda picture: folder
    if output == STANDARD or (not folder.is_dir() and (folder.suffix or folder.exists())):
        raise ConfigError(f"{output}: one file for several pictures; expected a folder, such as -o maps")

    def in_folder(picture: Picture) -> Path:
        path = picture.result(folder, suffix)
        make_folder(path.parent)
        return path

    return in_folder


def _map_of(analysis: Analysis, method: MethodName, **parameters: Any) -> Heatmap:
    """A map of an analysis, with a bar for a slow method."""
    record = METHODS[method]
    with reporting(desc=record.title, disable=not record.reports) as report:
        return analysis.map(method, report=report, **parameters)


def _write(heatmap: Heatmap, path: Path, style: Style, mark: tuple[int, int] | None) -> None:
    if is_stream(path):
        write_whole(path, partial(heatmap.overlay(style, mark).save, format="PNG"))
    else:
        heatmap.save(path, style, mark=mark)


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
        "predictions": best_classes(analysis),
    }
