"""Squares are given back in few passes until each that is left is needed, also where squares weigh on each other."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from types import SimpleNamespace
from typing import Any, cast

import torch

from vitviz.metrics.flip import MOST_PASSES, TRIAL_COUNT, FlipSearch

PATCHES = 64
MARGIN = 0.1


class Tangle:
    """Two classes, whose scores are of pairs of covered patches: what is needed depends on what else is covered."""

    def __init__(self, seed: int, count: int = PATCHES, lead: float = 16.0) -> None:
        self.lead = lead
        generator = torch.Generator().manual_seed(seed)
        pairs = 0.08 * torch.randn(count, count, generator=generator)
        self.weights = pairs + torch.diag(torch.rand(count, generator=generator).sort(descending=True).values)
        self.config: Any = SimpleNamespace(
            layout=lambda height, width: SimpleNamespace(patch_count=count), probability="softmax"
        )

    def without(self, pixels: torch.Tensor, patches: Sequence[Collection[int]]) -> torch.Tensor:
        covers = torch.zeros(len(patches), len(self.weights))
        for cover, covered in zip(covers, patches, strict=True):
            cover[list(covered)] = 1
        gains = torch.einsum("sp,pq,sq->s", covers, self.weights, covers)
        return torch.stack([torch.full_like(gains, self.lead), gains], 1)


def test_squares_are_given_back_in_few_passes_until_each_is_needed() -> None:
    passes, sizes = [], []
    for seed in range(12):
        search = FlipSearch(cast("Any", Tangle(seed)), torch.zeros(1, 3, 8, 8), 0, None, MARGIN)
        patches, is_found = search.patches(range(PATCHES))
        assert is_found and search.all_needed
        passes.append(search.passes)
        sizes.append(len(patches))
        for covered in [patches, *([each for each in patches if each != patch] for patch in patches)]:
            first, other = search.probabilities(covered).tolist()
            assert (other - first >= MARGIN) == (covered is patches)
    # To try all anew whenever some are given back takes 532 passes, to 203 patches.
    assert sum(passes) <= 480 and sum(sizes) <= 210


def test_of_a_large_set_not_every_square_is_tried() -> None:
    """What is found is real all the same, and the next search has as many passes."""
    search = FlipSearch(cast("Any", Tangle(0, 400, lead=30.0)), torch.zeros(1, 3, 8, 8), 0, None, MARGIN)
    for seed in range(3):
        passes = search.passes
        patches, is_found = search.patches(torch.randperm(400, generator=torch.Generator().manual_seed(seed)).tolist())
        assert is_found and not search.all_needed
        # What was begun is ended: some are tried together, and of those that can be spared as many are given back.
        assert MOST_PASSES <= search.passes - passes < MOST_PASSES + TRIAL_COUNT + 3
        first, other = search.probabilities(patches).tolist()
        assert other - first >= MARGIN
