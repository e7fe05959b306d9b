"""A few patches without which a classifier's answer is another one.

The nearest sources: Carter et al. 2019, "What made you do this? Understanding black-box decisions with sufficient input
subsets", which find a small set of features that alone keep the answer, by taking the least important away; and Martens
& Provost 2014, "Explaining Data-Driven Document Classifications", which find a small set of words without which it
changes. Here the set is found as in the second, in the order of a map, and made smaller as in the first.
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
# Covered pictures that go through the network together.
BATCH_SIZE = 8
# Fewer patches are given back one by one.
LEAST_TOGETHER = 4


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
        passes: pictures that went through the network so far.
    """

    network: Network
    pixels: torch.Tensor
    first: int
    to: int | None
    margin: float
    report: Callable[[Progress], None] | None = None
    passes: int = field(default=0, init=False)

    def patches(self, order: Sequence[int]) -> list[int] | None:
        """The patches to cover, in this order; None if the answer stays while half of the patches are covered.

        They are taken in the order, twice as many each time, until the answer is another one, and then fewer again.
        What is not needed is given back, until each that is left is needed by itself. The answer need not change with
        every further patch, so that a smaller set may exist.

        Args:
            order: numbers of all patches, the first to cover first.
        """
        low, high, most = 0, 1, int(MOST_COVERED * len(order))
        while high > most or not self._flips(order[:high]):
            if high >= most:
                return None
            low, high = high, min(2 * high, most)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self._flips(order[:middle]) else (middle, high)
        return self._needed(list(order[:high]))

    def probabilities(self, patches: Collection[int] = ()) -> torch.Tensor:
        """The probability of each class, ``"class"``, without these patches."""
        return self._probabilities([patches])[0]

    def _needed(self, patches: list[int]) -> list[int]:
        """The patches without those that are not needed: halves, quarters and so on, then each by itself."""
        size = len(patches) // 2
        while size >= LEAST_TOGETHER:
            for start in reversed(range(0, len(patches), size)):
                rest = patches[:start] + patches[start + size :]
                patches = rest if self._flips(rest) else patches
            size //= 2
        while True:
            leads = zip(self._leads([_rest(patches, [patch]) for patch in patches]), patches, strict=True)
            spare = [patch for lead, patch in sorted(leads, reverse=True) if lead >= self.margin]
            if not spare:
                return patches
            # Each alone is not needed, but together they may be.
            low, high = 1, len(spare) + 1
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if self._flips(_rest(patches, spare[:middle])) else (low, middle)
            patches = _rest(patches, spare[:low])

    def _flips(self, patches: Collection[int]) -> bool:
        return self._leads([patches])[0] >= self.margin

    def _leads(self, sets: Sequence[Collection[int]]) -> list[float]:
        """How far the other class is ahead without each of these sets of one size, in [-1, 1]."""
        probabilities = self._probabilities(sets)
        chosen = self.first if self.to is None else self.to
        others = probabilities.clone()
        others[:, chosen] = -torch.inf
        leads = probabilities[:, chosen] - others.amax(1)
        # Of one class against the best of the others, whichever of the two is asked for.
        values: list[float] = (-leads if self.to is None else leads).tolist()
        return values

    def _probabilities(self, sets: Sequence[Collection[int]]) -> torch.Tensor:
        patch_count, found = self.network.config.layout(*self.pixels.shape[-2:]).patch_count, list[torch.Tensor]()
        for start in range(0, len(sets), BATCH_SIZE):
            some = sets[start : start + BATCH_SIZE]
            self.passes += len(some)
            if self.report is not None:
                self.report(Progress(self.passes, max(self.passes, patch_count)))
            found.append(without_patches(self.network, self.pixels, some))
        return class_probabilities(torch.cat(found), self.network.config.probability).cpu()


def _rest(patches: Sequence[int], spare: Collection[int]) -> list[int]:
    return [patch for patch in patches if patch not in spare]
