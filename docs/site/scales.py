"""The picture of docs/methods.md: rollouts of one photograph on four scales.

    python -m docs.site.scales CHECKPOINT [--photo assets/coffee.jpg] [--output docs/scales.webp]

A checkpoint trained on photographs shows why scales are needed: in its rollouts, one patch is far above the others.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

import vitviz
from vitviz import Analysis, Heatmap, Style
from vitviz.visualization.scales import SCALES

SCALE_NAMES = ("linear", "robust", "log", "rank")
CELL, GAP, LABEL_HEIGHT, FONT_SIZE = 260, 6, 26, 15
BACKGROUND, INK = "#20242b", "white"


def rollouts(analysis: Analysis) -> dict[str, Heatmap]:
    """The maps of the picture by their labels."""
    return {
        "mean of the heads": analysis.rollout(),
        "maximum, 0.9 discarded": analysis.rollout(head_fusion="max", discard_ratio=0.9),
    }


def draw(heatmaps: dict[str, Heatmap]) -> Image.Image:
    """One row for each map, one column for each scale."""
    width = GAP + len(SCALE_NAMES) * (CELL + GAP)
    height = GAP + len(heatmaps) * (LABEL_HEIGHT + CELL + GAP)
    picture = Image.new("RGB", (width, height), BACKGROUND)
    pen, font = ImageDraw.Draw(picture), ImageFont.load_default(FONT_SIZE)
    for row, (label, heatmap) in enumerate(heatmaps.items()):
        automatic = heatmap.scale().scale.name
        for column, name in enumerate(SCALE_NAMES):
            left, top = GAP + column * (CELL + GAP), GAP + row * (LABEL_HEIGHT + CELL + GAP)
            title = SCALES[name].title + " (automatic)" * (name == automatic)
            pen.text((left + 2, top + 4), f"{label}: {title.lower()}" if column == 0 else title, INK, font)
            overlay = heatmap.overlay(Style(opacity=0.8, scale=name))
            crop = overlay.crop([round(edge) for edge in heatmap.geometry.box])
            picture.paste(crop.resize((CELL, CELL), Image.Resampling.LANCZOS), (left, top + LABEL_HEIGHT))
    return picture


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser("python -m docs.site.scales", description=__doc__.partition("\n")[0])
    parser.add_argument("checkpoint", help="of a network that was trained on photographs")
    parser.add_argument("--photo", type=Path, default=Path("assets/coffee.jpg"))
    parser.add_argument("--output", type=Path, default=Path("docs/scales.webp"))
    options = parser.parse_args(arguments)
    analysis = vitviz.analyze(options.photo, vitviz.load(options.checkpoint), "crop")
    heatmaps = rollouts(analysis)
    draw(heatmaps).save(options.output, quality=80)
    for label, heatmap in heatmaps.items():
        print(f"{label}: {heatmap.caption()}")


if __name__ == "__main__":
    main()
