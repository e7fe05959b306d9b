"""The pictures of docs/training.md, drawn from a run of `vitviz train`.

    python -m benchmarks.training_figures curves RUN [--output docs/training/curves.svg]
    python -m benchmarks.training_figures forming RUN [--output docs/training/forming.png]

The first draws the logs of a run, the second the attention of CLS in six of its snapshots.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from PIL import Image, ImageDraw, ImageFont

import vitviz
from vitviz import Analysis, Style

STATES = 6
PHOTOS = tuple(Path("assets") / name for name in ("chelsea.jpg", "coffee.jpg", "rocket.jpg"))
CELL_WIDTH, CELL_HEIGHT, GAP, LABEL_HEIGHT, FONT_SIZE = 220, 146, 6, 24, 14
BACKGROUND, INK = "#20242b", "white"


def scalars(logs: Path) -> dict[str, tuple[list[int], list[float]]]:
    """Steps and values of every curve of a log."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = EventAccumulator(str(logs), size_guidance={"scalars": 0})
    log.Reload()
    curves = {}
    for tag in log.Tags()["scalars"]:
        events = log.Scalars(tag)
        curves[tag] = ([event.step for event in events], [event.value for event in events])
    return curves


def curves(scalars: dict[str, tuple[list[int], list[float]]]) -> Figure:
    """The accuracy on the test images, left, and the training loss, right."""
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    accuracy_axes, loss_axes = figure.subplots(1, 2)
    for tag, (steps, values) in sorted(scalars.items()):
        if tag.startswith("test/accuracy"):
            accuracy_axes.plot(
                steps, 100 * np.array(values), label=tag.removeprefix("test/accuracy").strip(" /") or "test images"
            )
    accuracy_axes.set(xlabel="step", ylabel="accuracy on the test images, %")
    accuracy_axes.legend()
    steps, values = scalars["train/loss"]
    loss_axes.plot(steps, values, linewidth=0.6)
    loss_axes.set(xlabel="step", ylabel="loss on the training images")
    return figure


def evenly_spaced(steps: Sequence[int]) -> list[int]:
    """Up to :data:`STATES` of the steps, evenly spaced, with the first and the last."""
    indices = np.linspace(0, len(steps) - 1, min(STATES, len(steps))).round().astype(int)
    return [steps[index] for index in indices]


def forming(rows: dict[str, list[tuple[int, Analysis]]]) -> Image.Image:
    """One row for each photograph, one column for each state, each row on one scale."""
    columns = max(map(len, rows.values()))
    size = (GAP + columns * (CELL_WIDTH + GAP), GAP + len(rows) * (LABEL_HEIGHT + CELL_HEIGHT + GAP))
    picture = Image.new("RGB", size, BACKGROUND)
    pen, font = ImageDraw.Draw(picture), ImageFont.load_default(FONT_SIZE)
    for row, states in enumerate(rows.values()):
        heatmaps = [(step, analysis.attention()) for step, analysis in states]
        values = np.stack([heatmap.numpy() for _, heatmap in heatmaps])
        style = Style(opacity=0.8, low=float(values.min()), high=float(values.max()))
        for column, (step, heatmap) in enumerate(heatmaps):
            left, top = GAP + column * (CELL_WIDTH + GAP), GAP + row * (LABEL_HEIGHT + CELL_HEIGHT + GAP)
            pen.text((left + 2, top + 3), f"after {step:,} steps", INK, font)
            cell = heatmap.overlay(style).resize((CELL_WIDTH, CELL_HEIGHT), Image.Resampling.LANCZOS)
            picture.paste(cell, (left, top + LABEL_HEIGHT))
    return picture


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.training_figures", description=__doc__.partition("\n")[0])
    parser.add_argument("figure", choices=("curves", "forming"))
    parser.add_argument("run", type=Path, help="folder of a run of `vitviz train`")
    parser.add_argument("--photos", type=Path, nargs="+", default=list(PHOTOS))
    parser.add_argument("--output", type=Path, default=None)
    options = parser.parse_args(arguments)
    if options.figure == "curves":
        output = options.output or Path("docs/training/curves.svg")
        curves(scalars(options.run / "logs")).savefig(output)
    else:
        output = options.output or Path("docs/training/forming.png")
        model = vitviz.load(options.run / "snapshots")
        assert model.snapshots is not None
        states = [(step, vitviz.open_snapshot(model, step)) for step in evenly_spaced(model.snapshots.steps)]
        rows = {
            str(photo): [(step, vitviz.analyze(photo, state)) for step, state in states] for photo in options.photos
        }
        forming(rows).save(output)
    print(f"written to {output}")


if __name__ == "__main__":
    main()
