"""From the values of a map to places between the two ends of its colours.

A scale changes colours only: the values of a map, its exports and everything that is computed from them stay as they
are. The page computes the same in ``ui/explorer/js/scales.js``.

Percentiles are values that patches have: the upper one is the highest value that at least so many of a hundred do not
exceed, without interpolation, the lower one in the same way from below.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from vitviz.errors.arguments import number_or_none, word
from vitviz.errors.kinds import MethodError
from vitviz.errors.messages import describe

PERCENTILES = (2.0, 98.0)
# The rule by which a scale is chosen; the text of it is AUTOMATIC.
READABLE_MEDIAN, BRIGHT_MEDIAN = 0.1, 0.6
DIFFERENT_RATIO = 3.0
HELD_SHARE = 0.5
# The logarithmic scale reaches down to this part of its upper end.
LOG_FLOOR = 1e-4

AUTOMATIC = (
    "Linear, unless the median lies in the lowest tenth because a few patches take all colours from others that differ "
    "among themselves. If the highest value is more than 3 times the 99th percentile, and the 98th more than 3 times "
    "the 2nd: robust where that puts the median between 10 and 60 %, else logarithmic. If the highest value is more "
    "than 4 times the 95th percentile, the 95th more than 3 times the 5th, and the patches up to the 95th hold more "
    "than half of the sum: robust."
)

Ends = Callable[[np.ndarray, tuple[float, float], bool], tuple[float, float]]
Place = Callable[[np.ndarray, float, float, np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Peak:
    """When the highest patches take all colours from the others.

    Args:
        percentile: up to which the others reach.
        ratio: more than so many times its value is the highest.
        spread: the percentiles between which the others differ, by more than :data:`DIFFERENT_RATIO`.
    """

    percentile: float
    ratio: float
    spread: tuple[float, float]

    def is_in(self, reference: np.ndarray) -> bool:
        """Whether sorted values have such a peak."""
        low, high = self.spread
        stands_out = float(reference[-1]) > self.ratio * percentile(reference, self.percentile, "lower")
        return stands_out and percentile(reference, high, "lower") > DIFFERENT_RATIO * percentile(
            reference, low, "higher"
        )


ONE_PEAK, SEVERAL_PEAKS = Peak(99.0, 3.0, (2.0, 98.0)), Peak(95.0, 4.0, (5.0, 95.0))


@dataclass(frozen=True)
class Scale:
    """A way from values to colours.

    Args:
        name: by which it is chosen.
        title: by which the page calls it.
        help: what it does, one sentence.
        caption: how captions name it; ``{low}`` and ``{high}`` stand for the percentiles.
        ends: the values at the ends of the colours, of sorted values, the percentiles, and whether the values are the
            magnitudes of a signed map, whose lower end is zero.
        place: the places of values, of the two ends and the sorted values; 0 at the lower end and 1 at the upper.
    """

    name: str
    title: str
    help: str
    caption: str
    ends: Ends
    place: Place


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

    Half of it where other values are not above zero, so that these have a colour of their own.
    """
    positive, high = reference[reference > 0], float(reference[-1])
    if not positive.size:
        return 0.0, 0.0
    lowest = float(positive[0]) / (1 if positive.size == reference.size else 2)
    return max(lowest, high * LOG_FLOOR), high


def zero_to_highest(reference: np.ndarray, percentiles: tuple[float, float], signed: bool) -> tuple[float, float]:
    """Zero and the highest value."""
    return 0.0, float(reference[-1])


def straight(values: np.ndarray, low: float, high: float, reference: np.ndarray) -> np.ndarray:
    """In equal steps; values beyond the ends are beyond 0 and 1."""
    above = values - low
    # Ends without a range between them say only which values lie above, in numbers that single precision holds.
    return above / max(high - low, 1e-30 * np.abs(above).max(), np.finfo(np.float32).tiny)


def straight_clipped(values: np.ndarray, low: float, high: float, reference: np.ndarray) -> np.ndarray:
    """In equal steps, up to the ends."""
    return straight(values, low, high, reference).clip(0, 1)


def by_logarithm(values: np.ndarray, low: float, high: float, reference: np.ndarray) -> np.ndarray:
    """In equal steps of the logarithm, up to the ends."""
    if not 0 < low < high:
        return straight_clipped(values, low, high, reference)
    return np.log(values.clip(low, high) / low) / math.log(high / low)


def by_rank(values: np.ndarray, low: float, high: float, reference: np.ndarray) -> np.ndarray:
    """By the share of the patches that have less; equal values have equal places."""
    kept = reference.clip(low, high)
    less = np.searchsorted(kept, values.clip(low, high))
    return less / max(1, int(np.searchsorted(kept, high)))


SCALES = {
    scale.name: scale
    for scale in (
        Scale(
            "linear",
            "Linear",
            "Equal steps of the value from the lowest to the highest patch.",
            "Linear scale",
            lowest_to_highest,
            straight,
        ),
        Scale(
            "robust",
            "Robust",
            "Equal steps of the value between two percentiles, so that a few extreme patches do not take all colours.",
            "Scale from percentile {low} to {high}",
            between_percentiles,
            straight_clipped,
        ),
        Scale(
            "log",
            "Logarithmic",
            "Equal steps of the logarithm: equal ratios between values look equal, over four powers of ten at most.",
            "Logarithmic scale",
            lowest_positive_to_highest,
            by_logarithm,
        ),
        Scale(
            "rank",
            "Rank",
            "Equal steps of the rank: every colour is on as many patches, however far their values lie apart.",
            "Scale by rank",
            lowest_to_highest,
            by_rank,
        ),
        Scale(
            "zero",
            "From zero",
            "Equal steps of the value from zero to the highest patch.",
            "Scale from zero",
            zero_to_highest,
            straight_clipped,
        ),
    )
}
LINEAR, ROBUST, LOG = SCALES["linear"], SCALES["robust"], SCALES["log"]


@dataclass(frozen=True, eq=False)
class FittedScale:
    """A scale with the ends that some values give it; it may colour other maps, too.

    Args:
        scale: a record of :data:`SCALES`.
        low, high: values at the ends; of a signed map, of their magnitudes.
        reference: the values that it was fitted to, sorted; of a signed map, their magnitudes.
        percentiles: between which a robust scale lies.
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
        """The places of values between the ends of the colours, 0 and 1; a linear scale may leave them."""
        found = as_array(values)
        if not self.signed:
            return self.scale.place(found, self.low, self.high, self.reference)
        return 0.5 + 0.5 * np.sign(found) * self.scale.place(np.abs(found), self.low, self.high, self.reference)

    def beyond(self, values: Any) -> tuple[int, int]:
        """How many values lie below and above the ends."""
        found, (low, high) = as_array(values), self.ends
        return int((found < low).sum()), int((found > high).sum())

    def caption(self, values: Any) -> str:
        """One sentence about the colours of a map; empty for a linear scale that holds every value."""
        below, above = self.beyond(values)
        if self.scale is LINEAR and not below + above:
            return ""
        low, high = (f"{end:g}" for end in self.percentiles)
        name, total = self.scale.caption.format(low=low, high=high), as_array(values).size
        first, side = (above, "above") if above else (below, "below")
        if not first:
            return f"{name}."
        other = f" and {below} below" if above and below else ""
        return f"{name}; {first} of {total} patches {'lies' if first == 1 else 'lie'} {side} it{other}."


def fit(
    scale: str | None,
    maps: Iterable[Any],
    *,
    percentiles: tuple[float, float] = PERCENTILES,
    low: float | None = None,
    high: float | None = None,
    signed: bool = False,
) -> FittedScale:
    """One scale for the values of one map or several together.

    Args:
        scale: a name in :data:`SCALES`; None for the one that :func:`choose` gives. Where an end is given, that is the
            linear one.
        maps: the values of each, arrays or tensors of any shape.
        percentiles: between which a robust scale lies.
        low, high: values at the ends in place of those that the scale takes from the maps; of a signed map, the one
            further from zero is both. A logarithmic scale has only ends above zero.
        signed: whether zero lies in the middle of the colours, as far from both ends.

    Raises:
        MethodError: there is no such scale, the percentiles are out of order, or there is no value.
    """
    if scale is not None:
        word("scale", scale, SCALES)
    percentiles = percentile_pair("percentiles", percentiles)
    arrays = [as_array(each).ravel() for each in maps]
    values = np.concatenate(arrays) if arrays else np.empty(0)
    if not values.size:
        raise MethodError("scale: no values found; expected the values of at least one map")
    reference = np.sort(np.abs(values) if signed else values)
    if scale is not None:
        chosen = SCALES[scale]
    else:
        chosen = choose(reference, percentiles, signed) if low is None and high is None else LINEAR
    start, end = chosen.ends(reference, percentiles, signed)
    given = [abs(each) for each in (low, high) if each is not None]
    if signed:
        end = max(given, default=end)
    else:
        usable = chosen is not LOG
        start = low if low is not None and (usable or low > 0) else start
        end = high if high is not None and (usable or high > 0) else end
    return FittedScale(chosen, min(start, end), end, reference, percentiles, signed, scale is None)


def choose(reference: np.ndarray, percentiles: tuple[float, float] = PERCENTILES, signed: bool = False) -> Scale:
    """The scale that shows most of these sorted values; :data:`AUTOMATIC` puts the rule into words.

    A linear scale stays where it is readable, where no peak stands out, and where all but the peak is alike, since
    another scale would blow up its noise. It stays as well where several patches stand out and hold most of the sum:
    these are an object, and sinks are not.
    """
    if _median_place(LINEAR, reference, percentiles, signed) >= READABLE_MEDIAN:
        return LINEAR
    if ONE_PEAK.is_in(reference):
        is_readable = READABLE_MEDIAN <= _median_place(ROBUST, reference, percentiles, signed) <= BRIGHT_MEDIAN
        return ROBUST if is_readable else LOG
    return ROBUST if SEVERAL_PEAKS.is_in(reference) and _others_hold_most(reference) else LINEAR


def _others_hold_most(reference: np.ndarray) -> bool:
    """Whether the patches below the peaks hold more than :data:`HELD_SHARE` of the sum."""
    others = reference[: math.floor((len(reference) - 1) * (SEVERAL_PEAKS.percentile / 100)) + 1]
    return float(others.sum()) > HELD_SHARE * float(reference.sum())


def _median_place(scale: Scale, reference: np.ndarray, percentiles: tuple[float, float], signed: bool) -> float:
    low, high = scale.ends(reference, percentiles, signed)
    return float(scale.place(np.array([percentile(reference, 50, "lower")]), low, high, reference)[0])


def percentile(reference: np.ndarray, percent: float, side: str) -> float:
    """The value at a percentile of sorted values, the next one on its ``"lower"`` or ``"higher"`` side."""
    place = (len(reference) - 1) * (percent / 100)
    return float(reference[math.floor(place) if side == "lower" else math.ceil(place)])


def percentile_pair(name: str, value: object) -> tuple[float, float]:
    """Two percentiles.

    Raises:
        MethodError: they are none, or out of order.
    """
    pair = list(value) if isinstance(value, tuple | list) else []
    low, high = map(number_or_none, pair) if len(pair) == 2 else (None, None)
    if low is None or high is None or not 0 <= low < high <= 100:
        raise MethodError(f"{name} = {describe(value)}: expected two numbers from 0 to 100, the lower one first")
    return float(low), float(high)


def as_array(values: Any) -> np.ndarray:
    """Values of an array or a tensor, in double precision."""
    tensor = values.detach().cpu().double().numpy() if hasattr(values, "detach") else values
    return np.asarray(tensor, dtype=np.float64)
