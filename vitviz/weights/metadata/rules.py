"""What a file says of the preprocessing, before the network's size is known."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vitviz.errors.kinds import CheckpointError, ConfigError
from vitviz.images.preprocessing import Preprocessing
from vitviz.weights.metadata.settings import Settings

# Means and deviations.
HALVES = ((0.5,) * 3, (0.5,) * 3)
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))


@dataclass(frozen=True)
class PreprocessingRule:
    """What a file says of the preprocessing, before the network's size is known.

    Args:
        source: where it says so.
        arguments: those of :class:`Preprocessing`, without the size.
        size: the height and width of the input that it speaks of, if any.
        patch: side of the patches that it speaks of, if any; the size is then that of their number.
    """

    source: str
    arguments: Mapping[str, Any]
    size: tuple[int, int] | None
    patch: int | None = None

    def at(self, height: int, width: int) -> Preprocessing:
        """The preprocessing of a network of this size.

        Raises:
            CheckpointError: a value is out of range.
        """
        try:
            return Preprocessing(height, width, **self.arguments)
        except ConfigError as error:
            raise CheckpointError(f"{self.source}: {error}") from None

    def fit_network(self, height: int, width: int, patch: tuple[int, int], any_size: bool) -> tuple[Preprocessing, str]:
        """The preprocessing of a network trained at this size, and where it comes from.

        The package prepares pictures at the size in its file. So it is done here where the network reads as many
        patches of that size as it was trained at, or takes any number, as it does where the file states a number of
        patches; another size is not the network's, and the sentence says so.

        Raises:
            CheckpointError: a value is out of range, or the network has other patches.
        """
        if self.patch is not None and (self.patch, self.patch) != patch:
            raise CheckpointError(
                f"{self.source}: patch_size = {self.patch}: expected that of the network, {patch[0]}×{patch[1]}"
            )
        if self.size is None:
            return self.at(height, width), self.source
        grid = self.size[0] // patch[0], self.size[1] // patch[1]
        if grid == (height // patch[0], width // patch[1]) or ((any_size or self.patch) and min(grid)):
            return self.at(*self.size), self.source
        other = f"not at its {self.size[0]}×{self.size[1]} pixels but at the {height}×{width}"
        return self.at(height, width), f"{self.source}; {other} that the network was trained at"


def read_moments(
    section: Settings, default: tuple[tuple[float, ...], tuple[float, ...]], channels: int
) -> dict[str, tuple[float, ...]]:
    """Mean and deviation as timm and open_clip read them: those that are 0 or empty count as not stated."""
    stated = Settings({name: section.get(name) or None for name in ("mean", "std")}, section.place)
    return {name: stated.numbers(name, usual, channels) for name, usual in zip(stated, default, strict=True)}


def fraction_of(part: int, whole: int) -> float:
    """The largest fraction of which a whole is cut off to exactly this many pixels: ``floor(part / fraction)``."""
    fraction = part / whole
    while math.floor(part / fraction) < whole:
        fraction = math.nextafter(fraction, 0)
    return fraction
