"""The preprocessing that a file or a package states, without the size of the network."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from vitviz.errors.kinds import CheckpointError, ConfigError
from vitviz.images.preprocessing import Fit, Preprocessing
from vitviz.weights.metadata.normalisations import NORMALISATIONS

Moments = tuple[tuple[float, ...], tuple[float, ...]]


@dataclass(frozen=True)
class PreprocessingRule:
    """The preprocessing that a file or a package states, without the size of the network.

    Args:
        source: where it is stated.
        arguments: of :class:`Preprocessing`, without the size.
        size: height and width of the input that is stated, if any.
        defaults: entries that only the package's defaults state.
    """

    source: str
    arguments: Mapping[str, Any]
    size: tuple[int, int] | None
    defaults: tuple[str, ...] = ()

    @classmethod
    def convention(
        cls,
        moments: Moments,
        source: str,
        fit: Fit = "crop",
        crop_fraction: float = 0.875,
        interpolation: str = "bicubic",
    ) -> PreprocessingRule:
        """The usual preprocessing of a family; arguments as of :class:`Preprocessing`, for values in [0, 1]."""
        arguments = {"mean": moments[0], "std": moments[1], "fit": fit, "interpolation": interpolation}
        return cls(source, {**arguments, "crop_fraction": crop_fraction}, None)

    @property
    def assumption(self) -> str:
        """What only the package's defaults state, as the end of a sentence about the source; empty for nothing."""
        return f"; only the package's default states {', '.join(self.defaults)}" if self.defaults else ""

    def standardised(self, normalisation: str, channels: int) -> PreprocessingRule:
        """The same with the mean and deviation of this name in :data:`NORMALISATIONS`, stated by the user."""
        mean, std = (values[:channels] for values in NORMALISATIONS[normalisation])
        return replace(
            self,
            source=f"{self.source}; mean and std {normalisation!r}, stated by the user",
            arguments={**self.arguments, "mean": mean, "std": std},
            defaults=tuple(name for name in self.defaults if name.removeprefix("image_") not in ("mean", "std")),
        )

    def at(self, height: int, width: int) -> Preprocessing:
        """The preprocessing of a network of this size.

        Raises:
            CheckpointError: a value is out of range.
        """
        try:
            return Preprocessing(height, width, **self.arguments)
        except (ConfigError, TypeError) as error:
            raise CheckpointError(f"{self.source}: {error}") from None

    def fit_network(self, height: int, width: int, patch: tuple[int, int], any_size: bool) -> tuple[Preprocessing, str]:
        """The preprocessing of a network trained at this size, and a sentence with its source.

        The stated size is used, as the package does, if it has as many patches as the trained size, or if the network
        takes any size. Otherwise the trained size is used, and the sentence says so.

        Raises:
            CheckpointError: a value is out of range.
        """
        if self.size is None:
            return self.at(height, width), self.source
        grid = self.size[0] // patch[0], self.size[1] // patch[1]
        if grid == (height // patch[0], width // patch[1]) or (any_size and min(grid)):
            return self.at(*self.size), self.source
        size_note = f"not at its {self.size[0]}×{self.size[1]} pixels but at the {height}×{width}"
        return self.at(height, width), f"{self.source}; {size_note} that the network was trained at"


def fraction_of(pixels: int, total: int) -> float:
    """The largest fraction with ``floor(pixels / fraction) == total``."""
    fraction = pixels / total
    while math.floor(pixels / fraction) < total:
        fraction = math.nextafter(fraction, 0)
    return fraction


def common_fraction(pixels: Sequence[int], totals: Sequence[int]) -> float | None:
    """The largest fraction, at most 1, with ``floor(pixels / fraction) == total`` for each pair; None if none has."""
    fraction = min(map(fraction_of, pixels, totals))
    fits = all(math.floor(each / fraction) == total for each, total in zip(pixels, totals, strict=True))
    return fraction if fits and fraction <= 1 else None
