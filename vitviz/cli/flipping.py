"""The command ``vitviz flip``: squares of a picture without which the answer is another one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vitviz.cli.checkpoints import load_with_bar
from vitviz.cli.output import note, reporting
from vitviz.cli.pictures import Picture, analysis_of, for_each, is_one, take_settings


def run(images: Sequence[str], to: str | None, margin: float, output: Path | None, json: bool, **options: Any) -> int:
    """Print what every picture says without a few squares; the exit status says whether some failed."""
    settings = take_settings(options)
    model = load_with_bar(**options)

    def work(picture: Picture) -> dict[str, Any]:
        analysis = analysis_of(picture, model, **settings)
        with reporting(desc="Covering squares") as report:
            flip = analysis.flip(to, margin, report=report)
        if not json:
            print(flip if is_one(images) else f"{picture.path}: {flip}")
        if output is not None:
            path = picture.result(output, ".flip.png")
            path.parent.mkdir(parents=True, exist_ok=True)
            flip.heatmap.save(path)
            note(f"written to {path}")
        return {
            "model": model.name,
            "before": vars(flip.before),
            "after": vars(flip.after),
            "patches": flip.patches,
            "random_count": flip.random_count,
            "all_needed": flip.all_needed,
        }

    return for_each(images, work, json)
