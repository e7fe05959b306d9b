"""Labelled image folders, decoded once and kept in memory, and their training batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange
from tqdm import tqdm

from vitviz.errors.kinds import DataError
from vitviz.images.colours import ColorProfile
from vitviz.images.kinds import MAX_NAMES, described, left_out, picture_files
from vitviz.images.opening import open_image
from vitviz.images.preprocessing import Preprocessing
from vitviz.training.augment import mix_batch, views
from vitviz.training.config import Augmentation
from vitviz.training.soft_labels import SoftLabels

SPLITS = {"train": ("train",), "test": ("test", "val", "validation")}
MAX_IMAGE_BYTES = 8 * 2**30


@dataclass(frozen=True, eq=False)
class LabelledImages:
    """Decoded images and their classes.

    Args:
        images: ``"image channel height width"``, uint8.
        targets: ``"image"``, class indices.
        labels: names of the classes, in the order of the indices. A class may have no image.
        paths: paths of the files, relative to the folder of the split, with ``/``; empty for images without files.
    """

    images: torch.Tensor
    targets: torch.Tensor
    labels: tuple[str, ...]
    paths: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.images)

    def with_labels(self, labels: Sequence[str]) -> LabelledImages:
        """The same images, with class indices that refer to ``labels``, which must contain all of their classes."""
        new_indices = torch.tensor([labels.index(label) for label in self.labels])
        return replace(self, targets=new_indices[self.targets], labels=tuple(labels))

    def examples(self, classes: int) -> list[np.ndarray]:
        """The first image of each of the first classes that have one, each ``"height width channel"``."""
        first = [(self.targets == target).nonzero() for target in range(len(self.labels))]
        return [self.images[int(each[0])].permute(1, 2, 0).numpy() for each in first if len(each)][:classes]

    def at(self, side: int) -> LabelledImages:
        """The same images, brought to squares of ``side`` pixels."""
        if self.images.shape[-2:] == (side, side):
            return self
        # The mean of an area repeats pixels where it enlarges.
        mode = "area" if side < min(self.images.shape[-2:]) else "bilinear"
        resized = [F.interpolate(images.float(), (side, side), mode=mode) for images in self.images.split(5000)]
        return replace(self, images=torch.cat([images.round().to(torch.uint8) for images in resized]))


def read_image_folder(
    folder: Path,
    split: str,
    preprocessing: Preprocessing,
    patch_height: int,
    patch_width: int,
    color_profile: ColorProfile | None = None,
) -> LabelledImages:
    """Read ``folder/split/class/*``, each image brought to the model's input size.

    Args:
        folder: the folder that holds ``train`` and ``test`` (or ``val``).
        split: ``"train"`` or ``"test"``.
        preprocessing: how images become the model's input.
        patch_height, patch_width: size of the model's patches in pixels.
        color_profile: as :func:`vitviz.open_image` takes it; None for that of the preprocessing.

    Raises:
        DataError: the folder, its classes or their images are missing, or the images would not fit in memory.
        ImageError: an image cannot be opened; the message names it.
    """
    root = next((folder / name for name in SPLITS[split] if (folder / name).is_dir()), None)
    if root is None:
        folders = " or ".join(f"{name}/" for name in SPLITS[split])
        raise DataError(f"{folder}: no folder {folders} in it; expected {folders}CLASS/IMAGE for every class")
    labels = tuple(sorted(entry.name for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith(".")))
    paths_by_class = [image_paths((root / label).iterdir(), root / label) for label in labels]
    files = [(path, index) for index, paths in enumerate(paths_by_class) for path in paths]
    empty_labels = [label for label, paths in zip(labels, paths_by_class, strict=True) if not paths]
    if not files or empty_labels:
        problem = f"no image in {', '.join(empty_labels)}" if empty_labels else "no class folder in it"
        raise DataError(f"{root}: {problem}; expected CLASS/IMAGE with pictures")
    channels = len(preprocessing.mean)
    height, width = preprocessing.whole_patches(patch_height, patch_width)
    image_bytes = len(files) * channels * height * width
    if image_bytes > MAX_IMAGE_BYTES:
        max_gib = MAX_IMAGE_BYTES >> 30
        raise DataError(
            f"{root}: {len(files):,} decoded images take {image_bytes / 2**30:.1f} GiB; at most {max_gib} GiB are kept"
        )

    # All images of a folder share one input size, so that they can be stacked.
    fit = "squash" if preprocessing.fit == "native" else preprocessing.fit

    color_profile = color_profile or preprocessing.color_profile
    # The array is filled image by image, since a list of images would double the memory.
    images = torch.empty(len(files), channels, height, width, dtype=torch.uint8)

    def read_into(index: int) -> None:
        path, _ = files[index]
        # Messages name the whole path, since class folders often share file names.
        opened = open_image(path, str(path), color_profile=color_profile)
        image, _ = preprocessing.fit_image(opened, patch_height, patch_width, fit)
        values = torch.from_numpy(np.array(image)).view(height, width, channels)
        images[index] = rearrange(values, "height width channel -> channel height width")

    with ThreadPoolExecutor() as pool:
        for _ in tqdm(pool.map(read_into, range(len(files))), f"reading {root.name}", len(files), leave=False):
            pass
    paths = tuple(path.relative_to(root).as_posix() for path, _ in files)
    return LabelledImages(images, torch.tensor([index for _, index in files]), labels, paths)


def image_paths(paths: Iterable[Path], folder: Path) -> list[Path]:
    """The pictures among files in a folder; prints how many other files there are."""
    pictures, others = picture_files(paths, folder)
    sentence = left_out(len(others), [described(path, path.name) for path in others[:MAX_NAMES]])
    if sentence:
        tqdm.write(f"{folder}: {sentence}")
    return pictures


def training_batches(
    data: LabelledImages,
    preprocessing: Preprocessing,
    augmentation: Augmentation,
    batch_size: int,
    sides: Sequence[int],
    label_smoothing: float,
    seed: int,
    device: torch.device | None = None,
    order: torch.Tensor | None = None,
    soft_labels: SoftLabels | None = None,
    soft_label_weight: float = 0.0,
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield the batches of one epoch: normalised pixels and targets, on the device.

    Targets are class probabilities, beside them the teacher's features if the soft labels have them:
    ``"image (class feature)"``.

    The images come in the given order (:func:`vitviz.training.sampling.balanced_order`), or all in random order. Each
    batch draws one of the sides, in pixels. The last batch is dropped if it is smaller. With soft labels, the
    probabilities are a mean of these, with their weight, and of the smoothed labels.

    All random numbers follow from the seed, so that an epoch can be repeated after an interrupt.
    """
    random = torch.Generator().manual_seed(seed)
    if order is None:
        order = torch.randperm(len(data), generator=random)
    classes = len(data.labels)
    for indices in order.split(batch_size):
        if len(indices) < batch_size:
            return
        side = sides[int(torch.randint(len(sides), (), generator=random))] if len(sides) > 1 else sides[0]
        pixels = data.images[indices].to(device).float() / 255
        pixels = views(augmentation, pixels, side, random, preprocessing.detail)
        one_hot = F.one_hot(data.targets[indices].to(device), classes).float()
        targets = one_hot * (1 - label_smoothing) + label_smoothing / classes
        if soft_labels is not None:
            targets = torch.lerp(targets, soft_labels.probabilities[indices].to(targets), soft_label_weight)
            targets = torch.cat([targets, soft_labels.features[indices].to(targets)], 1)
        pixels, targets = mix_batch(augmentation, pixels, targets, random)
        yield preprocessing.standardise(pixels), targets
