"""The choice and order of an epoch's training images, so that rare classes are seen often enough."""

from __future__ import annotations

import math

import numpy as np
import torch

GOLDEN_FRACTION = (math.sqrt(5) - 1) / 2


def class_counts(sizes: np.ndarray, count: int, balance: float, epoch: int) -> np.ndarray:
    """The number of images of each class in an epoch: ``count`` in total, in proportion to ``sizes ** (1 - balance)``.

    The rounding differs from epoch to epoch, so that over many epochs each class gets its exact share.
    """
    shares = np.asarray(sizes, float) ** (1 - balance)
    boundaries = np.concatenate([[0.0], np.cumsum(shares / shares.sum() * count)])
    boundaries[-1] = count
    return np.diff(np.floor(boundaries + GOLDEN_FRACTION * epoch % 1)).astype(int)


def balanced_order(targets: torch.Tensor, count: int, balance: float, seed: int, epoch: int) -> torch.Tensor:
    """The indices of an epoch's images, in random order.

    Each class continues where it ended in the epoch before, and no image repeats before all images of its class have
    been used. The order follows from seed and epoch alone, so that an epoch can be repeated after an interrupt.

    Args:
        targets: ``"image"``, class indices; every class has an image.
        count: number of images in an epoch.
        balance: from 0, all images equally often, to 1, all classes equally often.
        seed: seed of the run.
        epoch: index of the epoch, from 0.

    Returns:
        ``"count"``, indices of images.
    """
    members = [np.flatnonzero(targets.numpy() == index) for index in range(int(targets.max()) + 1)]
    sizes = np.array([len(images) for images in members])
    used = sum((class_counts(sizes, count, balance, earlier) for earlier in range(epoch)), np.zeros(len(sizes), int))
    counts = class_counts(sizes, count, balance, epoch)
    class_orders = []
    for index, images in enumerate(members):
        start, end = int(used[index]), int(used[index] + counts[index])
        rounds = range(start // len(images), math.ceil(end / len(images)))
        permutations = [
            images[np.random.default_rng([seed, index, number]).permutation(len(images))] for number in rounds
        ]
        if permutations:
            skipped = start - rounds.start * len(images)
            class_orders.append(np.concatenate(permutations)[skipped : skipped + end - start])
    order = np.concatenate(class_orders)
    return torch.from_numpy(np.random.default_rng([seed, len(members), epoch]).permutation(order))
