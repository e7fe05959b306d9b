#!/usr/bin/env python3
"""Measure which pictures a model calls unlike those that it knows: evaluate_detector.py FOLDER OUTSIDE

`FOLDER` was written by `photos.py`, `OUTSIDE` by `outside.py`. Prints a Markdown table: of each kind of pictures, how
many are below the threshold that a tenth of the test photographs are below, by the scores of the logits and by the
model's OOD detector; and how well each score tells strangers from test photographs, over all and by their label. A
folder of `--others`, of screenshots for example, gets a row as well.
"""

from __future__ import annotations

import argparse
import io
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from compare_networks import drawn
from PIL import Image

import vitviz
from vitviz.models.vit import VisionTransformer
from vitviz.training.data import read_image_folder
from vitviz.training.out_of_distribution import (
    BELOW_THRESHOLD,
    DETECTOR,
    SCORES,
    area_under_curve,
    logits_and_scores,
    read_pictures,
    stack_pictures,
)

COLUMNS = (*SCORES, DETECTOR)


def charts() -> list[Image.Image]:
    """A line, bars, points, a pie and a table of colours, of made-up numbers."""
    random, pictures = np.random.default_rng(0), []
    figure, axes = plt.subplots(1, 5, figsize=(24, 3.4))
    axes[0].plot(random.normal(size=(40, 3)).cumsum(0))
    axes[1].bar(range(8), random.uniform(1, 9, 8))
    axes[2].scatter(*random.normal(size=(2, 120)))
    axes[3].pie(random.uniform(1, 5, 5), labels=list("ABCDE"))
    axes[4].imshow(random.uniform(size=(9, 9)))
    plt.close(figure)
    for axis in axes:
        content = io.BytesIO()
        box = axis.get_tightbbox().transformed(figure.dpi_scale_trans.inverted())
        figure.savefig(content, dpi=100, bbox_inches=box, format="png")
        pictures.append(Image.open(content).convert("RGB"))
    return pictures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("outside", type=Path)
    parser.add_argument("--checkpoint", default="vitviz-photos", help="default: the bundled one")
    parser.add_argument("--others", type=Path, nargs="*", default=[], metavar="PICTURES")
    options = parser.parse_args()

    model = vitviz.load(options.checkpoint)
    network, preprocessing = model.network, model.preprocessing
    assert isinstance(network, VisionTransformer) and model.ood_detector is not None
    patch = network.config.patch_height, network.config.patch_width

    def scored(images: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        return logits_and_scores(network, preprocessing, images, model.ood_detector)

    def read(folder: Path) -> dict[str, torch.Tensor]:
        return scored(read_pictures(folder, preprocessing, *patch))[1]

    test = read_image_folder(options.folder, "test", preprocessing, *patch).with_labels(model.labels)
    logits, known = scored(test.images)
    thresholds = {name: float(known[name].double().quantile(BELOW_THRESHOLD)) for name in COLUMNS}
    strangers = {folder.name: read(folder) for folder in sorted((options.folder / "strangers").iterdir())}
    kinds = {
        "noise, text and gradients": scored(stack_pictures(drawn(), preprocessing, *patch))[1],
        "charts": scored(stack_pictures(charts(), preprocessing, *patch))[1],
        **{folder.name: read(folder) for folder in options.others},
        "strangers": {name: torch.cat([each[name] for each in strangers.values()]) for name in COLUMNS},
        **{f"{name} from elsewhere": read(options.outside / name) for name in ("photographs", "cutouts")},
    }

    print(f"| called unlike | {' | '.join(COLUMNS)} |\n|{' --- |' * (len(COLUMNS) + 1)}")
    for kind, scores in kinds.items():
        below = [f"{int((scores[name] < thresholds[name]).sum())}" for name in COLUMNS]
        print(f"| {kind}, {len(scores[DETECTOR])} | {' | '.join(below)} |")
    for label, scores in {"strangers": kinds["strangers"], **strangers}.items():
        areas = [f"{area_under_curve(known[name], scores[name]):.3f}" for name in COLUMNS]
        print(f"| area under the ROC curve, {label}, {len(scores[DETECTOR])} | {' | '.join(areas)} |")
    right, unlike = logits.argmax(-1) == test.targets, known[DETECTOR] < thresholds[DETECTOR]
    print(f"right about {right[unlike].float().mean():.1%} of the {int(unlike.sum()):,} test photographs called unlike")


if __name__ == "__main__":
    main()
