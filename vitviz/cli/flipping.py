"""The command ``vitviz flip``: squares of a picture without which the answer is another one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vitviz.cli.checkpoints import load_with_bar
from vitviz.cli.maps import result_paths, write_map
from vitviz.cli.picture_files import Picture, analysis_of, for_each, is_one, take_settings
from vitviz.cli.printing import reporting, show
from vitviz.visualization.heatmaps import Style


def run(images: Sequence[str], to: str | None, margin: float, output: str | None, json: bool, **options: Any) -> int:
    """Print what every picture says without a few squares; the exit status says whether some failed."""
    settings = take_settings(options)
    path_of = result_paths(images, output, ".flip.png", json or output is None)
    model = load_with_bar(**options)

    def work(picture: Picture) -> dict[str, Any]:
        path, analysis = path_of(picture), analysis_of(picture, model, **settings)
        with reporting(desc="Covering squares") as report:
            flip = analysis.flip(to, margin, report=report)
        if not json:
            show(f"{flip}" if is_one(images) else f"{picture.path}: {flip}")
        write_map(flip.heatmap, path, Style())
        return {
            "model": model.name,
            "before": vars(flip.before),
            "after": vars(flip.after),
            "patches": flip.patches,
            "random_count": flip.random_count,
            "all_needed": flip.all_needed,
        }

    return for_each(images, work, json)
