"""Which training images an epoch sees, so that rare classes are seen often enough."""

from __future__ import annotations

import math

import numpy as np
import torch

GOLDEN = (math.sqrt(5) - 1) / 2


def class_counts(sizes: np.ndarray, count: int, balance: float, epoch: int) -> np.ndarray:
    """Images of each class in an epoch: ``count`` together, in proportion to ``sizes ** (1 - balance)``.

    Parts of an image are carried on: over the epochs every class gets its share exactly.
    """
    shares = np.asarray(sizes, float) ** (1 - balance)
    ends = np.concatenate([[0.0], np.cumsum(shares / shares.sum() * count)])
    ends[-1] = count
    return np.diff(np.floor(ends + GOLDEN * epoch % 1)).astype(int)


def balanced_order(targets: torch.Tensor, count: int, balance: float, seed: int, epoch: int) -> torch.Tensor:
    """The images of an epoch, in random order.

    A class goes on in an epoch where it ended in the one before, and none of its images comes again before all have
    come. Everything follows from seed and epoch, so that an epoch can be repeated after an interrupt.

    Args:
        targets: ``"image"``, class indices; every class has an image.
        count: images of an epoch.
        balance: from 0, all images equally often, to 1, all classes equally often.
        seed: of the run.
        epoch: from 0.

    Returns:
        ``"count"``, indices of images.
    """
    members = [np.flatnonzero(targets.numpy() == index) for index in range(int(targets.max()) + 1)]
    sizes = np.array([len(each) for each in members])
    before = sum((class_counts(sizes, count, balance, each) for each in range(epoch)), np.zeros(len(sizes), int))
    counts = class_counts(sizes, count, balance, epoch)
    chosen = []
    for index, images in enumerate(members):
        start, end = int(before[index]), int(before[index] + counts[index])
        rounds = range(start // len(images), math.ceil(end / len(images)))
        orders = [images[np.random.default_rng([seed, index, number]).permutation(len(images))] for number in rounds]
        if orders:
            skipped = start - rounds.start * len(images)
            chosen.append(np.concatenate(orders)[skipped : skipped + end - start])
    order = np.concatenate(chosen)
    return torch.from_numpy(np.random.default_rng([seed, len(members), epoch]).permutation(order))
