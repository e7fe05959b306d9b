"""What vitviz is to reach, each bar beside the measurement that it is for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks.measure import Entry
from benchmarks.numbers import mebibytes, significant
from benchmarks.parts import analysis, batch, captured, folder, gradients, imports, interaction, large, overlay, probes
from benchmarks.shapes import B_14, B_16, FIVE, S_8, TI_16

MIB = 2**20
GB = 10**9


@dataclass(frozen=True)
class Bar:
    """At most so many times the baseline's time, or so many bytes.

    Args:
        part, case, contestant: of the entry.
        kind: ``"time"`` or ``"memory"``.
        limit: the ratio of times, or bytes.
        in_interval: whether the limit has to lie in the confidence interval of the ratio.
    """

    part: str
    case: str
    contestant: str
    kind: str
    limit: float
    in_interval: bool = False

    def is_met(self, entry: Entry) -> bool:
        if not self.in_interval:
            return measured(entry) <= self.limit
        if entry["interval"] is None:
            return False
        low, high = entry["interval"]
        return bool(low <= self.limit <= high)

    def shown(self, value: float) -> str:
        """What is measured, or the limit, in its unit."""
        return mebibytes(value) if self.kind == "memory" else significant(value)

    @property
    def condition(self) -> str:
        """What the column of limits says."""
        return f"{self.shown(self.limit)} in the interval" if self.in_interval else self.shown(self.limit)


def measured(entry: Entry) -> float:
    """What of an entry of times or memory is held against its bar."""
    return float(entry["ratio"]["median"] if entry["kind"] == "time" else entry["bytes"])


def _times(part: str, contestant: str, limits: dict[str, float]) -> Iterable[Bar]:
    return (Bar(part, case, contestant, "time", limit) for case, limit in limits.items())


_FIVE = [shape.title for shape in FIVE]
_PAIR = [B_16.title, B_14.title]
BARS: tuple[Bar, ...] = (
    *_times("analysis", analysis.MEAN, dict(zip(_FIVE, (1.3, 1.06, 1.2, 1.2, 1.6), strict=True))),
    *_times("analysis", analysis.MAX, dict(zip(_FIVE, (1.4, 1.1, 1.3, 1.3, 1.8), strict=True))),
    *(
        Bar("analysis", case, contestant, "memory", limit)
        for contestant in (analysis.MEAN, analysis.MAX)
        for case, limit in ((B_14.title, 150 * MIB), (S_8.at(480).title, 260 * MIB))
    ),
    *_times("captured", captured.CAPTURED, dict(zip(_PAIR, (1.35, 1.3), strict=True))),
    *(Bar("probes", case.name, probes.WITH, "time", 1.0, in_interval=True) for case in probes.PART.cases),
    Bar("gradients", B_14.title, gradients.RELEVANCE, "time", 2.7),
    Bar("gradients", B_14.title, gradients.RELEVANCE, "memory", 550 * MIB),
    *_times("interaction", interaction.ROWS, dict.fromkeys(_PAIR, 0.002)),
    *_times("interaction", interaction.MEAN, dict(zip(_PAIR, (0.04, 0.25), strict=True))),
    *_times("interaction", interaction.MAX, dict(zip(_PAIR, (0.06, 0.35), strict=True))),
    *_times("interaction", interaction.KEPT_MEAN, dict(zip(_PAIR, (0.001, 0.005), strict=True))),
    *_times("interaction", interaction.KEPT_MAX, dict(zip(_PAIR, (0.01, 0.03), strict=True))),
    *_times("overlay", overlay.VITVIZ, dict.fromkeys((overlay.PATCHES, overlay.SMOOTH), 1 / 50)),
    *_times("batch", batch.VITVIZ, {B_16.title: 1.15}),
    Bar("imports", imports.CASE, imports.VITVIZ, "time", 1.3),
    *_times("folder", folder.MEAN, {TI_16.title: 1.25, B_16.title: 1.15}),
    *(Bar("large", case.name, large.VITVIZ, "memory", GB) for case in large.PART.cases),
)


def bar_of(part: str, entry: Entry) -> Bar | None:
    """The bar for an entry of a part, if there is one."""
    key = (part, entry["case"], entry["contestant"], entry["kind"])
    return next((bar for bar in BARS if (bar.part, bar.case, bar.contestant, bar.kind) == key), None)
