#!/usr/bin/env python3
"""Count test photographs with a near copy in the training data, and how often the model is right about the others.

    near_copies.py FOLDER

`FOLDER` was written by `photos.py`. Sources that were put together overlap: two have photographs of the same set, and
some have several shots of one thing. Photographs are compared by the correlation of 14×14 means of each colour.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from mean import EVERYDAY

import vitviz
from vitviz.models.vit import VisionTransformer
from vitviz.training.data import read_image_folder
from vitviz.training.evaluate import classify

GRID, LIKENESSES, CHUNK = 14, (0.95, 0.97), 10_000


def small(images: torch.Tensor) -> torch.Tensor:
    """Means of the colours of images, of unit length: ``"image feature"``, from ``"image channel height width"``."""
    means = [F.adaptive_avg_pool2d(part.float(), GRID).flatten(1) for part in images.split(CHUNK // 10)]
    return F.normalize(torch.cat([part - part.mean(1, keepdim=True) for part in means]), dim=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()

    model = vitviz.load()
    network = model.network
    assert isinstance(network, VisionTransformer)
    patch = network.config.patch_height, network.config.patch_width
    train = small(read_image_folder(options.folder, "train", model.preprocessing, *patch).images)
    test = read_image_folder(options.folder, "test", model.preprocessing, *patch).with_labels(model.labels)
    features = small(test.images)
    likeness = torch.stack([(features @ part.T).amax(1) for part in train.split(CHUNK)]).amax(0)
    # "image rank": whether the class of each rank is the right one.
    is_right = classify(network, model.preprocessing, test).argsort(1, descending=True) == test.targets[:, None]
    everyday = torch.isin(test.targets, torch.tensor([model.labels.index(name) for name in EVERYDAY]))
    for least in LIKENESSES:
        others = likeness <= least
        shares = [is_right[others, :among].any(1).float().mean() for among in (1, 5)]
        shares.append(is_right[others & everyday, 0].float().mean())
        top1, top5, of_everyday = (f"{float(share):.2%}" for share in shares)
        print(f"{int((~others).sum())} of {len(test):,} correlate with a training photograph above {least}")
        print(f"without them: top-1 {top1}, top-5 {top5}, everyday classes {of_everyday}")


if __name__ == "__main__":
    main()
