"""The limits that vitviz must meet, each for one measurement."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks.measure import Entry
from benchmarks.numbers import mebibytes, significant
from benchmarks.shapes import B_14, B_16, FIVE, S_8, TI_16
from benchmarks.suite import analysis, batch, captured, folder, gradients, imports, interaction, large, overlay, probes

MIB = 2**20
GB = 10**9


@dataclass(frozen=True)
class Bar:
    """An upper limit: a multiple of the baseline's time, or a number of bytes.

    Args:
        benchmark, case, contestant: of the entry.
        kind: ``"time"`` or ``"memory"``.
        limit: the ratio of times, or bytes.
        in_interval: whether the limit has to lie in the confidence interval of the ratio.
    """

    benchmark: str
    case: str
    contestant: str
    kind: str
    limit: float
    in_interval: bool = False

    def is_met(self, entry: Entry) -> bool:
        if not self.in_interval:
            return value_of(entry) <= self.limit
        if entry["interval"] is None:
            return False
        low, high = entry["interval"]
        return bool(low <= self.limit <= high)

    def format(self, value: float) -> str:
        """A measured value, or the limit, with its unit."""
        return mebibytes(value) if self.kind == "memory" else significant(value)

    @property
    def condition(self) -> str:
        """The text in the column of limits."""
        return f"{self.format(self.limit)} in the interval" if self.in_interval else self.format(self.limit)


def value_of(entry: Entry) -> float:
    """The value of an entry that is compared with its bar."""
    return float(entry["ratio"]["median"] if entry["kind"] == "time" else entry["bytes"])


def _times(benchmark: str, contestant: str, limits: dict[str, float]) -> Iterable[Bar]:
    return (Bar(benchmark, case, contestant, "time", limit) for case, limit in limits.items())


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
    *(Bar("probes", case.name, probes.WITH, "time", 1.0, in_interval=True) for case in probes.BENCHMARK.cases),
    Bar("gradients", B_14.title, gradients.RELEVANCE, "time", 2.7),
    Bar("gradients", B_14.title, gradients.RELEVANCE, "memory", 550 * MIB),
    *_times("interaction", interaction.ROWS, dict.fromkeys(_PAIR, 0.002)),
    *_times("interaction", interaction.MEAN, dict(zip(_PAIR, (0.04, 0.25), strict=True))),
    *_times("interaction", interaction.MAX, dict(zip(_PAIR, (0.06, 0.35), strict=True))),
    *_times("interaction", interaction.CACHED_MEAN, dict(zip(_PAIR, (0.001, 0.005), strict=True))),
    *_times("interaction", interaction.CACHED_MAX, dict(zip(_PAIR, (0.01, 0.03), strict=True))),
    *_times("overlay", overlay.VITVIZ, dict.fromkeys((overlay.PATCHES, overlay.SMOOTH), 1 / 50)),
    *_times("batch", batch.VITVIZ, {B_16.title: 1.15}),
    Bar("imports", imports.CASE, imports.VITVIZ, "time", 1.15),
    *_times("folder", folder.MEAN, {TI_16.title: 1.25, B_16.title: 1.15}),
    *(Bar("large", case.name, large.VITVIZ, "memory", GB) for case in large.BENCHMARK.cases),
)


def bar_of(benchmark: str, entry: Entry) -> Bar | None:
    """The bar for an entry of a benchmark, if there is one."""
    key = (benchmark, entry["case"], entry["contestant"], entry["kind"])
    return next((bar for bar in BARS if (bar.benchmark, bar.case, bar.contestant, bar.kind) == key), None)
