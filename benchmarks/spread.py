"""The middle of repeated measurements and how far they spread."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from scipy.stats import binom
from scipy.stats import t as student_t


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


def median_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The interval that holds the median with at least 95 % confidence, by ranks, whatever the distribution.

    None for fewer than six values, of which no interval is so sure.
    """
    rank = int(binom.ppf(0.025, len(values), 0.5))
    ordered = sorted(values)
    return (ordered[rank - 1], ordered[-rank]) if rank else None


class Interval(NamedTuple):
    """A mean and half the width of its 95 % confidence interval."""

    mean: float
    margin: float

    def holds(self, value: float) -> bool:
        """Whether a value lies in the interval."""
        return abs(value - self.mean) <= self.margin


def interval(values: Sequence[float]) -> Interval:
    """Student's interval of at least two values, which is right for few of them, too."""
    error = statistics.stdev(values) / math.sqrt(len(values))
    return Interval(statistics.fmean(values), float(student_t.ppf(0.975, len(values) - 1)) * error)
