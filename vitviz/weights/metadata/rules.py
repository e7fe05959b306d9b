"""The preprocessing that a file, a package or a convention states."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from vitviz.errors.kinds import CheckpointError, ConfigError
from vitviz.images.preprocessing import Fit, Preprocessing
from vitviz.weights.metadata.normalisations import moments_of


@dataclass(frozen=True)
class PreprocessingRule:
    """The preprocessing that a file, a package or a convention states, whatever the size of the network.

    Args:
        source: where it is stated.
        preprocessing: at the size that is stated, if any.
        is_sized: whether a size is stated.
        defaults: entries that only the package's defaults state.
    """

    source: str
    preprocessing: Preprocessing
    is_sized: bool = True
    defaults: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, source: str, size: Sequence[int], defaults: tuple[str, ...] = (), **arguments: Any
    ) -> PreprocessingRule:
        """A rule with a size, height and width; the other arguments are those of :class:`Preprocessing`.

        Raises:
            CheckpointError: a value is out of range.
        """
        try:
            return cls(source, Preprocessing(size[0], size[1], **arguments), defaults=defaults)
        except (ConfigError, TypeError) as error:
            raise CheckpointError(f"{source}: {error}") from None

    @classmethod
    def convention(
        cls,
        moments: tuple[tuple[float, ...], tuple[float, ...]],
        source: str,
        fit: Fit = "crop",
        crop_fraction: float = 0.875,
        interpolation: str = "bicubic",
    ) -> PreprocessingRule:
        """The usual preprocessing of a family; arguments as of :class:`Preprocessing`, for values in [0, 1]."""
        return cls(source, Preprocessing(224, 224, *moments, fit, crop_fraction, interpolation), is_sized=False)

    @property
    def assumption(self) -> str:
        """What only the package's defaults state, as the end of a sentence about the source; empty for nothing."""
        return f"; only the package's default states {', '.join(self.defaults)}" if self.defaults else ""

    def standardised(self, normalisation: str, channels: int) -> PreprocessingRule:
        """The same with the mean and deviation of this name in :data:`NORMALISATIONS`, stated by the user."""
        return replace(
            self,
            source=f"{self.source}; mean and std {normalisation!r}, stated by the user",
            preprocessing=replace(self.preprocessing, **moments_of(normalisation, channels)),
            defaults=tuple(name for name in self.defaults if name.removeprefix("image_") not in ("mean", "std")),
        )

    def fit_network(self, height: int, width: int, patch: tuple[int, int], any_size: bool) -> tuple[Preprocessing, str]:
        """The preprocessing of a network trained at this size, and a sentence with its source.

        The stated size is used, as the package does, if it has as many patches as the trained size, or if the network
        takes any size. Otherwise the trained size is used, and the sentence says so.
        """
        size = self.preprocessing.height, self.preprocessing.width
        grid = size[0] // patch[0], size[1] // patch[1]
        if self.is_sized and (grid == (height // patch[0], width // patch[1]) or (any_size and min(grid))):
            return self.preprocessing, self.source
        note = f"; not at its {size[0]}×{size[1]} pixels but at the {height}×{width} that the network was trained at"
        return replace(self.preprocessing, height=height, width=width), self.source + note * self.is_sized


def common_fraction(pixels: Sequence[int], totals: Sequence[int]) -> float | None:
    """The largest fraction, at most 1, with ``floor(pixels / fraction) == total`` for each pair; None if none has."""
    pairs = [*zip(pixels, totals, strict=True)]
    share = min(part / total for part, total in pairs)
    # The quotient may be rounded up; the next smaller number is then below the exact one.
    shares = (each for each in (share, math.nextafter(share, 0)) if each <= 1)
    return next((each for each in shares if all(math.floor(part / each) == total for part, total in pairs)), None)
