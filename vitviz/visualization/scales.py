"""Scales map the values of a map to positions between the two ends of its colours.

A scale changes colours only, not the values of a map, its exports or anything computed from them. The page computes
the same in ``ui/page/scales.js``.

Percentiles round inwards to an actual patch value: the upper one to the next lower value, the lower one to the next
higher.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from vitviz.errors.arguments import instance, number, number_or_none, two_or_none, word
from vitviz.errors.kinds import MethodError
from vitviz.errors.messages import describe

PERCENTILES = (2.0, 98.0)
# Numbers of the rule that chooses a scale, which AUTOMATIC puts into words.
READABLE_MEDIAN, BRIGHT_MEDIAN = 0.1, 0.6
DIFFERENT_RATIO = 3.0
MIN_SUM_SHARE = 0.5
# The logarithmic scale reaches down to this share of its upper end.
LOG_FLOOR = 1e-4
# The colours of a linear scale that was chosen span at least this share of the largest value.
MIN_CONTRAST = 0.2

AUTOMATIC = (
    "Linear, unless a few patches would take the colours of all others: then robust or logarithmic, whichever shows "
    "the others. Exactly: another scale is tried if the median would lie in the lowest tenth of the linear one. If the "
    "highest value is then more than 3 times the 99th percentile, and the 98th more than 3 times the 2nd: robust if "
    "its median lies between 10 and 60 %, otherwise logarithmic. If the highest value is more than 4 times the 95th "
    "percentile, the 95th more than 3 times the 5th, and the patches up to the 95th hold more than half of the sum: "
    "robust. The colours of a map whose values differ by less than a fifth of the largest go further up than its "
    "values, so that it looks as flat as it is."
)

ScaleName = Literal["linear", "robust", "log", "rank", "zero"]
Ends = Callable[[np.ndarray, tuple[float, float], bool], tuple[float, float]]
Place = Callable[[np.ndarray, float, float, np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Peak:
    """The condition that a few patches take all colours from the others.

    Args:
        percentile: upper end of the others.
        ratio: factor by which the highest value must exceed the value at that percentile.
        spread: percentiles of the others, whose values differ by more than a factor of :data:`DIFFERENT_RATIO`.
    """

    percentile: float
    ratio: float
    spread: tuple[float, float]

    def applies(self, reference: np.ndarray) -> bool:
        """Whether sorted values meet the condition."""
        low, high = self.spread
        stands_out = float(reference[-1]) > self.ratio * percentile(reference, self.percentile, "lower")
        return stands_out and percentile(reference, high, "lower") > DIFFERENT_RATIO * percentile(
            reference, low, "higher"
        )


ONE_PEAK, SEVERAL_PEAKS = Peak(99.0, 3.0, (2.0, 98.0)), Peak(95.0, 4.0, (5.0, 95.0))


@dataclass(frozen=True)
class Scale:
    """A map from values to positions on the colours.

    Args:
        name: name in code.
        title: name on the page.
        help: one sentence on what it does.
        caption: name in captions; ``{low}`` and ``{high}`` stand for the percentiles.
        signed_caption: that of signed maps, if it is another one.
        ends: computes the values at the ends of the colours from sorted values, the percentiles, and whether the values
            are magnitudes of a signed map, whose lower end is zero.
        place: computes the positions of values from the two ends and the sorted values: 0 at the lower end, 1 at the
            upper.
    """

    name: ScaleName
    title: str
    help: str
    caption: str
    ends: Ends
    place: Place
    signed_caption: str = ""


def lowest_to_highest(reference: np.ndarray, percentiles: tuple[float, float], signed: bool) -> tuple[float, float]:
    """The lowest and the highest value."""
    return (0.0 if signed else float(reference[0])), float(reference[-1])


def between_percentiles(reference: np.ndarray, percentiles: tuple[float, float], signed: bool) -> tuple[float, float]:
    """The values at two percentiles."""
    low, high = percentiles
    return (0.0 if signed else percentile(reference, low, "higher")), percentile(reference, high, "lower")


def lowest_positive_to_highest(
    reference: np.ndarray, percentiles: tuple[float, float], signed: bool
) -> tuple[float, float]:
    """The lowest value above zero, but at least :data:`LOG_FLOOR` of the highest, and the highest.

    The lower end is half as high if other values are not above zero, so that these have a colour of their own.
    """
    positive, high = reference[reference > 0], float(reference[-1])
    if not positive.size:
        return 0.0, 0.0
    lowest = float(positive[0]) / (1 if positive.size == reference.size else 2)
    return max(lowest, high * LOG_FLOOR), high


def zero_to_highest(reference: np.ndarray, percentiles: tuple[float, float], signed: bool) -> tuple[float, float]:
    """Zero and the highest value."""
    return 0.0, float(reference[-1])


def place_linearly(values: np.ndarray, low: float, high: float, reference: np.ndarray) -> np.ndarray:
    """Positions in equal steps of the value; values beyond the ends are beyond 0 and 1."""
    above = values - low
    # Equal ends divide by a tiny number, but keep the result within single precision.
    return above / max(high - low, 1e-30 * np.abs(above).max(), np.finfo(np.float32).tiny)


def place_linearly_clipped(values: np.ndarray, low: float, high: float, reference: np.ndarray) -> np.ndarray:
    """Positions in equal steps of the value, clipped to the ends."""
    return place_linearly(values, low, high, reference).clip(0, 1)


def place_by_logarithm(values: np.ndarray, low: float, high: float, reference: np.ndarray) -> np.ndarray:
    """Positions in equal steps of the logarithm, clipped to the ends."""
    if not 0 < low < high:
        return place_linearly_clipped(values, low, high, reference)
    # So that no quotient exceeds double precision.
    low = max(low, 1e-300 * high)
    # The logarithm of the upper end by the same function, whose last digit may differ from that of math.log.
    logarithms = np.log(np.append(values.clip(low, high), high) / low)
    return logarithms[:-1].reshape(values.shape) / logarithms[-1]


def place_by_rank(values: np.ndarray, low: float, high: float, reference: np.ndarray) -> np.ndarray:
    """Positions by the share of patches with lower values; equal values have equal positions."""
    clipped = reference.clip(low, high)
    rank = np.searchsorted(clipped, values.clip(low, high))
    return rank / max(1, int(np.searchsorted(clipped, high)))


SCALES: dict[ScaleName, Scale] = {
    scale.name: scale
    for scale in (
        Scale(
            "linear",
            "Linear",
            "Equal steps of the value from the lowest to the highest patch.",
            "Linear scale",
            lowest_to_highest,
            place_linearly,
        ),
        Scale(
            "robust",
            "Robust",
            "Equal steps of the value between two percentiles, so that a few extreme patches do not take all colours.",
            "Scale from percentile {low} to {high}",
            between_percentiles,
            place_linearly_clipped,
            "Scale to percentile {high} of the absolute values",
        ),
        Scale(
            "log",
            "Logarithmic",
            "Equal steps of the logarithm: equal ratios between values look equal, over four powers of ten at most.",
            "Logarithmic scale",
            lowest_positive_to_highest,
            place_by_logarithm,
        ),
        Scale(
            "rank",
            "Rank",
            "Equal steps of the rank: every colour is on as many patches, however far their values lie apart.",
            "Scale by rank",
            lowest_to_highest,
            place_by_rank,
        ),
        Scale(
            "zero",
            "From zero",
            "Equal steps of the value from zero to the highest patch.",
            "Scale from zero",
            zero_to_highest,
            place_linearly_clipped,
        ),
    )
}
LINEAR, ROBUST, LOG = SCALES["linear"], SCALES["robust"], SCALES["log"]


@dataclass(frozen=True, eq=False)
class FittedScale:
    """A scale with its ends fitted to some values; it may colour other maps, too.

    Args:
        scale: a record of :data:`SCALES`.
        low, high: values at the ends; for a signed map, magnitudes.
        reference: the sorted values to which it was fitted; for a signed map, magnitudes.
        percentiles: ends of a robust scale.
        signed: whether zero lies in the middle of the colours.
        automatic: whether the scale was chosen from the values.
    """

    scale: Scale
    low: float
    high: float
    reference: np.ndarray
    percentiles: tuple[float, float] = PERCENTILES
    signed: bool = False
    automatic: bool = False

    @property
    def ends(self) -> tuple[float, float]:
        """The values at the two ends of the colours."""
        return (-self.high if self.signed else self.low), self.high

    def place(self, values: Any) -> np.ndarray:
        """The positions of values between the ends of the colours, 0 and 1; a linear scale may exceed these."""
        array = as_array(values)
        if not self.signed:
            return self.scale.place(array, self.low, self.high, self.reference)
        return 0.5 + 0.5 * np.sign(array) * self.scale.place(np.abs(array), self.low, self.high, self.reference)

    def beyond(self, values: Any) -> tuple[int, int]:
        """The number of values below and above the ends."""
        array, (low, high) = as_array(values), self.ends
        return int((array < low).sum()), int((array > high).sum())

    def caption(self, values: Any) -> str:
        """One sentence about the colours of a map; empty for a linear scale that includes every value."""
        below, above = self.beyond(values)
        if self.scale is LINEAR and not below + above:
            contrast = _contrast(self.reference)
            is_flat = self.automatic and not self.signed and 0 < contrast < MIN_CONTRAST
            return f"Almost flat: the values differ by less than {math.floor(100 * contrast) + 1} %." if is_flat else ""
        low, high = (f"{end:g}" for end in self.percentiles)
        words, total = (self.signed and self.scale.signed_caption) or self.scale.caption, as_array(values).size
        count, side = (above, "above") if above else (below, "below")
        name, second = words.format(low=low, high=high), f" and {below} below" if above and below else ""
        if not count:
            return f"{name}."
        return f"{name}; {count} of {total} patches {'lies' if count == 1 else 'lie'} {side} it{second}."


def fit(
    scale: ScaleName | None,
    maps: Iterable[Any],
    *,
    percentiles: tuple[float, float] = PERCENTILES,
    low: float | None = None,
    high: float | None = None,
    signed: bool = False,
) -> FittedScale:
    """One scale for the values of one map or several together.

    Args:
        scale: a name in :data:`SCALES`; None for the result of :func:`choose`, or the linear one if an end is given.
        maps: values of each map, arrays or tensors of any shape.
        percentiles: ends of a robust scale.
        low, high: values at the ends in place of those fitted to the maps. For a signed map, the one further from zero
            determines both, unless it is zero itself. A logarithmic scale ignores ends that are not above zero.
        signed: whether zero lies in the middle of the colours.

    Raises:
        MethodError: there is no such scale, the percentiles are out of order, an end is no number, there is no value,
            or not all are finite.
    """
    if scale is not None:
        word("scale", scale, SCALES)
    percentiles = percentile_pair("percentiles", percentiles)
    low, high = (
        None if end is None else number(name, end, math.isfinite, "a finite number, or None")
        for name, end in (("low", low), ("high", high))
    )
    several = instance("maps", maps, Iterable, "[heatmap]", MethodError)  # type: ignore[type-abstract]
    values = np.concatenate([np.empty(0), *(as_array(values).ravel() for values in several)])
    if not values.size or not np.isfinite(values).all():
        raise MethodError("scale: no values, or NaN or infinity among them; expected the numbers of at least one map")
    reference = np.sort(np.abs(values) if signed else values)
    is_chosen = scale is None and low is None and high is None
    record = choose(reference, percentiles, signed) if is_chosen else SCALES[scale or "linear"]
    start, end = record.ends(reference, percentiles, signed)
    if is_chosen and record is LINEAR and not signed and 0 < _contrast(reference) < MIN_CONTRAST:
        end = start + MIN_CONTRAST * max(abs(start), abs(end))
    if signed:
        # An end of 0 says nothing of a scale around zero.
        end = max(abs(low or 0), abs(high or 0)) or end
    else:
        start = low if low is not None and (record is not LOG or low > 0) else start
        end = high if high is not None and (record is not LOG or high > 0) else end
        # A stated lower end moves a fitted upper one that lies below it.
        end = max(start, end) if low is not None and high is None else end
    return FittedScale(record, min(start, end), end, reference, percentiles, signed, scale is None)


def choose(reference: np.ndarray, percentiles: tuple[float, float] = PERCENTILES, signed: bool = False) -> Scale:
    """The scale that shows most of these sorted values; :data:`AUTOMATIC` puts the rule into words.

    The scale is linear if it is readable or no peak stands out, and also if all patches but the peak are alike, since
    another scale would amplify their noise. It is linear, too, if several patches stand out and hold most of the sum:
    these are an object rather than sinks.
    """
    if _median_place(LINEAR, reference, percentiles, signed) >= READABLE_MEDIAN:
        return LINEAR
    if ONE_PEAK.applies(reference):
        is_readable = READABLE_MEDIAN <= _median_place(ROBUST, reference, percentiles, signed) <= BRIGHT_MEDIAN
        return ROBUST if is_readable else LOG
    return ROBUST if SEVERAL_PEAKS.applies(reference) and _rest_holds_most(reference) else LINEAR


def _contrast(reference: np.ndarray) -> float:
    """The difference between the highest and the lowest of sorted values, as a share of the largest magnitude."""
    low, high = float(reference[0]), float(reference[-1])
    return (high - low) / max(abs(low), abs(high), float(np.finfo(np.float32).tiny))


def _rest_holds_most(reference: np.ndarray) -> bool:
    """Whether the patches below the peaks hold more than :data:`MIN_SUM_SHARE` of the sum."""
    rest = reference[: math.floor((len(reference) - 1) * (SEVERAL_PEAKS.percentile / 100)) + 1]
    return float(rest.sum()) > MIN_SUM_SHARE * float(reference.sum())


def _median_place(scale: Scale, reference: np.ndarray, percentiles: tuple[float, float], signed: bool) -> float:
    low, high = scale.ends(reference, percentiles, signed)
    return float(scale.place(np.array([percentile(reference, 50, "lower")]), low, high, reference)[0])


def percentile(reference: np.ndarray, percent: float, side: str) -> float:
    """The value at a percentile of sorted values, or the next one on its ``"lower"`` or ``"higher"`` side."""
    index = (len(reference) - 1) * (percent / 100)
    return float(reference[math.floor(index) if side == "lower" else math.ceil(index)])


def percentile_pair(name: str, value: object) -> tuple[float, float]:
    """The value as two percentiles.

    Raises:
        MethodError: it is not a pair of percentiles in ascending order.
    """
    pair = two_or_none(number_or_none, value)
    if pair is None or not 0 <= pair[0] < pair[1] <= 100:
        raise MethodError(f"{name} = {describe(value)}: expected two numbers from 0 to 100, the lower one first")
    return float(pair[0]), float(pair[1])


def as_array(values: Any) -> np.ndarray:
    """Values of an array or a tensor, in double precision."""
    tensor = values.detach().cpu().double().numpy() if hasattr(values, "detach") else values
    return np.asarray(tensor, dtype=np.float64)
