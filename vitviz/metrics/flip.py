"""A few patches without which a classifier's answer is another one.

The nearest sources: Carter et al. 2019, "What made you do this? Understanding black-box decisions with sufficient input
subsets", which find a small set of features that alone keep the answer, by taking the least important away; and Martens
& Provost 2014, "Explaining Data-Driven Document Classifications", which find a small set of words without which it
changes. Here the set is found as in the second, and made smaller as in the first. The order is by how fast another
answer gains as the attention to a patch weakens, taken anew of the patches that remain.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import torch

from vitviz.metrics.ablation import without_patches
from vitviz.models.network import Network
from vitviz.models.probability import class_probabilities
from vitviz.progress import Progress

# Of the patches, the most that may be covered.
MOST_COVERED = 0.5
# Patches that are covered first.
FIRST_COUNT = 3
# Patches that are tried together, each by itself, before any is given back.
TRIAL_COUNT = 4
# After so many passes nothing more is tried: of large sets, few patches would still be given back.
MOST_PASSES = 80
# Of a forward and a backward pass, the time in forward passes.
GRADIENT_PASSES = 3


@dataclass
class FlipSearch:
    """The search for a few patches without which a network's answer is another one.

    Args:
        network: a classifier in evaluation mode.
        pixels: ``"1 channel height width"``, normalised as the checkpoint was trained.
        first: the class that it answers for the whole picture.
        to: the class that it shall answer; None for any other.
        margin: by how much the probability of the other class must be above the rest, or for any other class above that
            of ``first``.
        report: receives the number of passes, of about as many as there are patches; an exception from it ends the
            search.
        passes: pictures that went through the network so far; one that also went back counts as three.
        all_needed: whether each of the patches that were found last is needed by itself; False if there were too many
            to try them all.
    """

    network: Network
    pixels: torch.Tensor
    first: int
    to: int | None
    margin: float
    report: Callable[[Progress], None] | None = None
    passes: int = field(default=0, init=False)
    all_needed: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        self.patch_count = self.network.config.layout(*self.pixels.shape[-2:]).patch_count

    def patches(self, order: Sequence[int] | None = None) -> tuple[list[int], bool]:
        """The patches to cover, and whether the answer is another one without them.

        They are taken in the order, twice as many each time, until the answer is another one, and then fewer again.
        What is not needed is given back, until each that is left is needed by itself, or ``MOST_PASSES`` are over. The
        answer need not change with every further patch, so that a smaller set may exist. If it stays while half of the
        patches are covered, these are returned.

        Args:
            order: numbers of all patches, the first to cover first; by default those without whose attention another
                answer gains most, found anew whenever more are covered.
        """
        most, low, covered = int(MOST_COVERED * self.patch_count), 0, list[int]()
        last_pass = self.passes + MOST_PASSES
        while not covered or not self._flips(covered):
            if len(covered) == most:
                return covered, False
            ranking = [patch for patch in order or self._ranking(covered) if patch not in covered]
            low = len(covered)
            covered += ranking[: min(max(FIRST_COUNT, low), most - low)]
        count = _last(low, len(covered), lambda count: not self._flips(covered[:count]))
        return self._needed(covered[: count + 1], last_pass), True

    def probabilities(self, patches: Collection[int] = ()) -> torch.Tensor:
        """The probability of each class, ``"class"``, without these patches."""
        return self._probabilities([patches])[0]

    def _ranking(self, covered: Collection[int]) -> list[int]:
        """All patches, those first by which another class gains most."""
        self._count(GRADIENT_PASSES)
        gradients = self.network.attention_gradients(self.pixels, covered, lambda logits: self._leads(logits)[0])
        return gradients.argsort(stable=True).tolist()

    def _needed(self, patches: list[int], last_pass: int) -> list[int]:
        """The patches without those that are not needed.

        Each that is left was tried after the last was given back, unless that takes more passes than there are left.
        """
        # Those that were covered last are needed least.
        untried, leads = patches[::-1], dict[int, float]()
        while untried and self.passes < last_pass:
            some, untried = untried[:TRIAL_COUNT], untried[TRIAL_COUNT:]
            leads |= zip(some, self._leads_without([_rest(patches, [patch]) for patch in some]), strict=True)
            ranking = sorted(leads, key=leads.__getitem__, reverse=True)
            spare = [patch for patch in ranking if leads[patch] >= self.margin]
            if spare:
                count = self._spare_count(patches, spare)
                patches = _rest(patches, spare[:count])
                # What was needed beside these may not be any more: last, as it seldom is.
                untried, leads = untried + ranking[count:], {}
        self.all_needed = not untried
        return patches

    def _spare_count(self, patches: Sequence[int], spare: Sequence[int]) -> int:
        """How many of these can be given back: each alone is not needed, but together they may be."""
        return _last(1, len(spare) + 1, lambda count: self._flips(_rest(patches, spare[:count])))

    def _flips(self, patches: Collection[int]) -> bool:
        return self._leads_without([patches])[0] >= self.margin

    def _leads_without(self, sets: Sequence[Collection[int]]) -> list[float]:
        """How far the other class is ahead without each of these sets of one size, in [-1, 1]."""
        return [float(lead) for lead in self._leads(self._probabilities(sets))]

    def _leads(self, scores: torch.Tensor) -> torch.Tensor:
        """How far the other class is ahead, ``"set"``, from ``"set class"``."""
        chosen = self.first if self.to is None else self.to
        others = torch.cat([scores[:, :chosen], scores[:, chosen + 1 :]], 1)
        leads = scores[:, chosen] - others.amax(1)
        # With no class to reach, any other one may be ahead of the first.
        return -leads if self.to is None else leads

    def _probabilities(self, sets: Sequence[Collection[int]]) -> torch.Tensor:
        self._count(len(sets))
        logits = without_patches(self.network, self.pixels, sets)
        return class_probabilities(logits, self.network.config.probability).cpu()

    def _count(self, passes: int) -> None:
        self.passes += passes
        if self.report is not None:
            self.report(Progress(self.passes, max(self.passes, self.patch_count)))


def _rest(patches: Sequence[int], spare: Collection[int]) -> list[int]:
    return [patch for patch in patches if patch not in spare]


def _last(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """A number that holds, from low on, and whose next does not, by halves; low does, and high does not."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
