"""Principal components of patches, of all or of those in the foreground."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from vitviz.errors.kinds import MethodError

# The colours have their ends at these percentiles of the patches, so that a few do not take the whole scale.
ENDS = (1.0, 99.0)


@dataclass(frozen=True, eq=False)
class Basis:
    """Principal components of the vectors of patches, all in double precision.

    Vectors have length 1, so that components agree with cosines. A component's sign makes the entry of its direction
    positive that has the largest magnitude.

    Args:
        mean: ``"channel"``, of the patches from which it was made.
        directions: ``"channel component"``, the one with the largest variance first.
        ends: ``"end component"``, the 1st and 99th percentile of these patches.
        shares: ``"component"``, of the variance.
        foreground: a basis of one component, above zero in the foreground; None if these are components of all patches.
        source: kind and layer of the vectors, and samples of the weights of their model.
    """

    mean: torch.Tensor = field(repr=False)
    directions: torch.Tensor = field(repr=False)
    ends: torch.Tensor = field(repr=False)
    shares: torch.Tensor
    foreground: Basis | None = field(default=None, repr=False)
    source: Any = field(default=None, repr=False)

    @classmethod
    def of(cls, patches: torch.Tensor, count: int, foreground: Basis | None = None, source: Any = None) -> Basis:
        """The components of vectors ``"patch channel"``, or of those in the foreground.

        Raises:
            MethodError: there are not as many components.
        """
        patches = patches.double()
        if foreground is not None:
            patches = patches[foreground.project(patches)[:, 0] > 0]
        if count > patches.shape[1]:
            raise MethodError(f"count = {count}: expected at most {patches.shape[1]}, the channels of a vector")
        if not len(patches):
            raise MethodError("foreground: no patch stands out from the others; expected foreground=False")
        # The covariance of channels rather than of patches: memory does not grow with the square of the patches.
        variances, directions = torch.linalg.eigh(torch.cov(patches.T, correction=0))
        directions = directions.flip(1)[:, :count]
        directions = directions * directions.gather(0, directions.abs().argmax(0, keepdim=True)).sign()
        shares = variances.flip(0)[:count] / variances.sum().clamp(min=torch.finfo(torch.float64).tiny)
        mean = patches.mean(0)
        ends = np.percentile(((patches - mean) @ directions).numpy(), ENDS, 0)
        return cls(mean, directions, torch.from_numpy(ends), shares.clamp(0, 1), foreground, source)

    def seen_from(self, pictures: Sequence[torch.Tensor]) -> Basis:
        """The same with the sign of the first component below zero for most patches at the borders of pictures.

        Args:
            pictures: ``"row column channel"`` each.
        """
        signs = [self.project(each)[..., 0].sign() for each in pictures]
        border = sum(float(each.sum() - each[1:-1, 1:-1].sum()) for each in signs)
        return replace(self, directions=self.directions * (-1.0 if border > 0 else 1.0))

    def project(self, vectors: torch.Tensor) -> torch.Tensor:
        """The components of vectors: ``"… channel"`` to ``"… component"``."""
        return (vectors.double() - self.mean) @ self.directions

    def inside(self, vectors: torch.Tensor) -> torch.Tensor:
        """Whether vectors ``"… channel"`` are of the foreground: ``"…"``; all are if there is none apart."""
        if self.foreground is None:
            return torch.ones(vectors.shape[:-1], dtype=torch.bool)
        return self.foreground.project(vectors)[..., 0] > 0

    def place(self, components: torch.Tensor) -> torch.Tensor:
        """Where components lie between :attr:`ends`, in [0, 1]; 0.5 where both ends are the same but for rounding."""
        low, span = self.ends[0], self.ends[1] - self.ends[0]
        return ((components - low) / span.where(span > 1e-6, torch.inf)).where(span > 1e-6, 0.5).clamp(0, 1)
