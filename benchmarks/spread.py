"""The middle of repeated measurements and how far they spread."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from scipy.stats import binom


class Spread(NamedTuple):
    """Median, quartiles, minimum and number of values."""

    median: float
    lower: float
    upper: float
    least: float
    count: int


def spread(values: Sequence[float]) -> Spread:
    """The spread of values. Quartiles are interpolated as NumPy's; those of one value are that value."""
    lower, median, upper = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [*values] * 3
    return Spread(median, lower, upper, min(values), len(values))


def ratios(values: Sequence[float], baseline: Sequence[float]) -> list[float]:
    """Each value divided by that of the baseline in the same round, for the rounds that both have."""
    return [value / base for value, base in zip(values, baseline, strict=False)]


def median_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The interval that holds the median with at least 95 % confidence, by ranks, for any distribution.

    None for fewer than six values, which have no such interval.
    """
    rank = int(binom.ppf(0.025, len(values), 0.5))
    ordered = sorted(values)
    return (ordered[rank - 1], ordered[-rank]) if rank else None
