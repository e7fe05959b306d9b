"""The middle of repeated measurements and how far they spread."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple


class Spread(NamedTuple):
    """Median, quartiles and least of so many values."""

    median: float
    lower: float
    upper: float
    least: float
    count: int


def spread(values: Sequence[float]) -> Spread:
    """Quartiles lie between values, as NumPy's do; those of one value are that value."""
    lower, median, upper = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [*values] * 3
    return Spread(median, lower, upper, min(values), len(values))


def ratios(values: Sequence[float], baseline: Sequence[float]) -> list[float]:
    """Each value over that of the baseline in the same round; of the rounds that both were in, the first ones."""
    return [value / base for value, base in zip(values, baseline, strict=False)]
