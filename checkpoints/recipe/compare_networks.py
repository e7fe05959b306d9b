#!/usr/bin/env python3
"""Compare networks by what users bring: compare_networks.py FOLDER OUTSIDE NETWORK... [--count 1000] [--side 112]

`FOLDER` was written by `photos.py`, `OUTSIDE` by `outside.py`. A `NETWORK` is a checkpoint, a `compact.pt`, or several
of these joined by `+`, whose mean is compared. Each gets a row of a Markdown table: what is right of the test
photographs and of pictures from elsewhere, how well strangers are told from test photographs, and which pictures its
OOD detector flags. Networks are computed in single precision and not calibrated, so that only their order is looked at.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from mean import EVERYDAY, mean_of, network_of, raise_everyday
from PIL import Image, ImageDraw

import vitviz
from vitviz.images.opening import open_image
from vitviz.images.preprocessing import Preprocessing
from vitviz.models.vit import VisionTransformer
from vitviz.training.data import read_image_folder
from vitviz.training.evaluate import logits_of
from vitviz.training.out_of_distribution import (
    SCORES,
    area_under_curve,
    encode,
    fit_detector,
    read_pictures,
    stack_pictures,
)

# Training images to which the detector is fitted; drawn pictures of each kind.
FITTED, DRAWN = 3000, 6
COLUMNS = (
    "network | top-1 | top-5 | everyday | cross-entropy | photographs | in five | cut out | in five | birds | "
    "strangers by probability | by the detector | flagged: strangers | photographs | cut out | drawn"
)


@dataclass(frozen=True)
class Pictures:
    """Pictures at one size, ``"image channel row column"``, uint8, and their classes, ``"image"``."""

    images: torch.Tensor
    classes: torch.Tensor

    def right(self, logits: torch.Tensor, among: int = 1) -> torch.Tensor:
        """Whether the class is among the most probable ones: ``"image"``."""
        return (logits.topk(among).indices == self.classes[:, None]).any(1)


def outside(folder: Path, labels: tuple[str, ...], preprocessing: Preprocessing, patch: int) -> Pictures:
    """The pictures of a folder with a folder for each of some classes."""
    images, classes = [], []
    for part in sorted(folder.iterdir()):
        images.append(read_pictures(part, preprocessing, patch, patch))
        classes += [labels.index(part.name)] * len(images[-1])
    return Pictures(torch.cat(images), torch.tensor(classes))


def drawn() -> list[Image.Image]:
    """Noise, text and gradients."""
    random, pictures = np.random.default_rng(0), []
    for _ in range(DRAWN):
        text = Image.new("RGB", (400, 300), "white")
        for line in range(10, 290, 14):
            letters = "".join(map(chr, random.integers(97, 123, 60)))
            ImageDraw.Draw(text).text((10, line), letters, fill="black")
        corners = Image.fromarray(random.integers(0, 256, (2, 2, 3), dtype=np.uint8))
        noise = Image.fromarray(random.integers(0, 256, (200, 300, 3), dtype=np.uint8))
        pictures += [noise, text, corners.resize((200, 200), Image.Resampling.BILINEAR)]
    return pictures


def open_network(text: str, raised: float) -> VisionTransformer:
    """The network of a checkpoint, or of the mean of states."""
    paths = [Path(part) for part in text.split("+")]
    if paths[0].suffix == ".safetensors":
        loaded = vitviz.load(paths[0]).network
        assert isinstance(loaded, VisionTransformer)
        return loaded
    state = mean_of(paths, [1.0] * len(paths))
    raise_everyday(state, raised)
    return network_of(state)


class Comparison:
    """The pictures that networks are compared by.

    Args:
        folder, elsewhere: what ``photos.py`` and ``outside.py`` wrote.
        count: number of test photographs, drawn by chance.
        side: of the input in pixels.
        detail: side in pixels to which pictures are reduced before they are enlarged, 0 for none; None as the bundled
            model does.
    """

    def __init__(self, folder: Path, elsewhere: Path, count: int, side: int, detail: int | None) -> None:
        like = vitviz.load()
        patch = like.network.config.patch_height
        self.preprocessing, self.side = like.preprocessing, side
        if detail is not None:
            self.preprocessing = replace(like.preprocessing, detail=detail or None)
        test = read_image_folder(folder, "test", self.preprocessing, patch, patch)
        self.labels = test.labels
        random = torch.Generator().manual_seed(0)
        chosen = torch.randperm(len(test), generator=random)[:count]
        self.test = Pictures(test.images[chosen], test.targets[chosen])
        paths = sorted((folder / "train").glob("*/*"))
        fitted = [open_image(paths[index]) for index in torch.randperm(len(paths), generator=random)[:FITTED].tolist()]
        self.training = stack_pictures(fitted, self.preprocessing, patch, patch)
        self.photographs = outside(elsewhere / "photographs" / "test", test.labels, self.preprocessing, patch)
        self.cut_out = outside(elsewhere / "cutouts" / "test", test.labels, self.preprocessing, patch)
        self.strangers = read_pictures(folder / "strangers", self.preprocessing, patch, patch)
        self.drawn = stack_pictures(drawn(), self.preprocessing, patch, patch)

    def row(self, name: str, network: VisionTransformer) -> str:
        """The row of a network."""
        test = self._logits(network, self.test.images)
        everyday = torch.isin(self.test.classes, torch.tensor([self.labels.index(each) for each in EVERYDAY]))
        cells = [name, *(f"{self.test.right(test, among).float().mean():.1%}" for among in (1, 5))]
        cells.append(f"{self.test.right(test)[everyday].float().mean():.1%}")
        cells.append(f"{F.cross_entropy(test, self.test.classes):.3f}")
        birds = 0
        for pictures in (self.photographs, self.cut_out):
            logits = self._logits(network, pictures.images)
            cells += [str(int(pictures.right(logits, among).sum())) for among in (1, 5)]
            birds += int((pictures.right(logits) & (pictures.classes == self.labels.index("bird"))).sum())
        strangers = self._logits(network, self.strangers)
        probability = SCORES["highest probability"]
        cells += [str(birds), f"{area_under_curve(probability(test), probability(strangers)):.3f}"]
        return " | ".join([*cells, *self._detected(network)])

    def _detected(self, network: VisionTransformer) -> list[str]:
        """The cells about the detector; it is fitted at the model's own size alone."""
        if self.side != self.preprocessing.height:
            return ["–"] * 5
        _, training = encode(network, self.preprocessing, self.training)
        held_out = encode(network, self.preprocessing, self.test.images)
        detector = fit_detector(training, *held_out)
        others = (self.strangers, self.photographs.images, self.cut_out.images, self.drawn)
        scores = [detector.score(*encode(network, self.preprocessing, images)) for images in others]
        flagged = [int((each < detector.threshold).sum()) for each in scores]
        return [f"{area_under_curve(detector.score(*held_out), scores[0]):.3f}", *map(str, flagged)]

    def _logits(self, network: VisionTransformer, images: torch.Tensor) -> torch.Tensor:
        if self.side != images.shape[-1]:
            images = F.interpolate(images.float(), [self.side] * 2, mode="area").round().byte()
        return logits_of(network, self.preprocessing, images)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("outside", type=Path)
    parser.add_argument("networks", nargs="+", metavar="NETWORK")
    parser.add_argument("--count", type=int, default=1000, help="test photographs (default: 1000)")
    parser.add_argument("--side", type=int, default=112, help="of the input in pixels (default: 112)")
    parser.add_argument("--picture-detail", type=int, default=None, help="default: the bundled model's")
    parser.add_argument("--raise-everyday", type=float, default=0.0, metavar="NUMBER", help="as of mean.py")
    options = parser.parse_args()

    comparison = Comparison(options.folder, options.outside, options.count, options.side, options.picture_detail)
    print(f"| {COLUMNS} |\n|{' --- |' * (COLUMNS.count('|') + 1)}")
    for text in options.networks:
        name = "+".join(Path(part).stem for part in text.split("+"))
        print(f"| {comparison.row(name, open_network(text, options.raise_everyday))} |", flush=True)


if __name__ == "__main__":
    main()
