"""The command ``vitviz predict``, which prints the most probable classes of pictures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vitviz.cli.checkpoints import load_with_bar
from vitviz.cli.picture_files import Picture, analysis_of, for_each, is_one, take_settings


def run(
    images: Sequence[str],
    count: int,
    json: bool,
    **options: Any,
) -> int:
    """Print the most probable classes of every picture; the exit status says whether some failed."""
    settings = take_settings(options)
    model = load_with_bar(**options)

    def work(picture: Picture) -> dict[str, Any]:
        analysis = analysis_of(picture, model, **settings)
        predictions = [vars(each) for each in analysis.predictions(count)]
        if not json:
            lines = [f"{each['probability']:7.2%}  {each['label']}" for each in predictions]
            print("\n".join([*([] if is_one(images) else [picture.path]), *lines]))
        return {"model": model.name, "predictions": predictions}

    return for_each(images, work, json)
