"""Labelled image folders, decoded once and kept in memory, and their training batches."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from unicodedata import normalize

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange
from tqdm import tqdm

from vitviz.errors.kinds import DataError
from vitviz.images.colours import ColorProfile
from vitviz.images.file_kinds import is_hidden, left_out, picture_files, why_left_out
from vitviz.images.opening import open_image
from vitviz.images.preprocessing import Preprocessing
from vitviz.progress import progress_bar
from vitviz.system.paths import files_in, missing
from vitviz.training.augment import mix_batch, views
from vitviz.training.presets import TrainingConfig

SPLITS = {"train": ("train",), "test": ("test", "val", "validation")}
MAX_IMAGE_BYTES = 8 * 2**30


@dataclass(frozen=True, eq=False)
class LabelledImages:
    """Decoded images and their classes.

    Args:
        images: ``"image channel height width"``, uint8.
        targets: ``"image"``, class indices.
        labels: names of the classes, in the order of the indices. A class may have no image.
    """

    images: torch.Tensor
    targets: torch.Tensor
    labels: tuple[str, ...]

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
        problem = f"no folder {folders} in it" if folder.is_dir() else missing(folder, kind="folder")
        raise DataError(f"{folder}: {problem}; expected {folders}CLASS/IMAGE for every class")
    found = set(files_in(root))
    pictures, others = picture_files(found, root)
    # A folder that is found itself, such as a link to one above, is not searched.
    class_folders = [each.name for each in root.iterdir() if each.is_dir() and each not in found]
    # Letters that a disk composes from other characters are the same.
    labels = tuple(sorted({normalize("NFC", name) for name in class_folders if not is_hidden(Path(name))}))
    files = {path: normalize("NFC", path.relative_to(root).parts[0]) for path in pictures if path.parent != root}
    rest = [(str(each.relative_to(root)), why_left_out(each)) for each in others]
    rest += [(each.name, "in no folder of a class") for each in pictures if each not in files]
    if rest:
        tqdm.write(f"{root}: {left_out(rest)}")
    empty_labels = sorted({*labels}.difference(files.values()))
    if not files or empty_labels:
        problem = f"no image in {', '.join(empty_labels)}" if empty_labels else "no class folder in it"
        raise DataError(f"{root}: {problem}; expected CLASS/IMAGE with pictures")
    images = read_pictures([*files], root, preprocessing, patch_height, patch_width, color_profile)
    indices = {label: index for index, label in enumerate(labels)}
    return LabelledImages(images, torch.tensor([indices[label] for label in files.values()]), labels)


def read_pictures(
    paths: Sequence[Path],
    folder: Path,
    preprocessing: Preprocessing,
    patch_height: int,
    patch_width: int,
    color_profile: ColorProfile | None = None,
) -> torch.Tensor:
    """Pictures of a folder, brought to the model's input size: ``"image channel height width"``, uint8.

    Raises:
        DataError: they would not fit in memory.
        ImageError: a picture cannot be opened; the message names it.
    """
    # All images share one input size, so that they can be stacked.
    fit = "squash" if preprocessing.fit == "native" else preprocessing.fit
    shape = len(preprocessing.mean), *preprocessing.whole_patches(patch_height, patch_width)
    image_bytes = len(paths) * math.prod(shape)
    if image_bytes > MAX_IMAGE_BYTES:
        gib, max_gib = image_bytes / 2**30, MAX_IMAGE_BYTES >> 30
        raise DataError(f"{folder}: {len(paths):,} decoded images take {gib:.1f} GiB; at most {max_gib} GiB are kept")
    # The array is filled image by image, since a list of images would double the memory.
    images = torch.empty(len(paths), *shape, dtype=torch.uint8)

    def read_into(index: int) -> None:
        # Messages name the whole path, since class folders often share file names.
        name, profile = str(paths[index]), color_profile or preprocessing.color_profile
        opened = open_image(paths[index], name, color_profile=profile)
        values = np.array(preprocessing.fit_image(opened, patch_height, patch_width, fit)[0])
        images[index] = rearrange(torch.from_numpy(values), "height width ... -> (...) height width")

    with ThreadPoolExecutor() as pool:
        for _ in progress_bar(f"reading {folder.name}", pool.map(read_into, range(len(paths))), len(paths)):
            pass
    return images


def training_batches(
    data: LabelledImages,
    preprocessing: Preprocessing,
    config: TrainingConfig,
    epoch: int,
    device: torch.device | None = None,
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield the batches of one epoch: normalised pixels and class probabilities ``"image class"``, on the device.

    All images come in random order; the last batch is dropped if it is smaller. All random numbers follow from the seed
    and the epoch, so that an epoch can be repeated after an interrupt.
    """
    random = torch.Generator().manual_seed(config.seed * 1_000_003 + epoch)
    sides, classes = config.sides(epoch), len(data.labels)
    for indices in torch.randperm(len(data), generator=random).split(config.batch_size):
        if len(indices) < config.batch_size:
            return
        side = sides[int(torch.randint(len(sides), (), generator=random))]
        pixels = views(config, data.images[indices].to(device).float() / 255, side, random)
        one_hot = F.one_hot(data.targets[indices].to(device), classes).float()
        targets = one_hot * (1 - config.label_smoothing) + config.label_smoothing / classes
        pixels, targets = mix_batch(config.mix, pixels, targets, random)
        yield preprocessing.standardise(pixels), targets
