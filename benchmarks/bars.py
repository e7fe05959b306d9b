"""The limits that vitviz must meet, each for one measurement."""

from __future__ import annotations

from benchmarks.measure import Entry
from benchmarks.shapes import B_14, B_16, FIVE, S_8, TI_16
from benchmarks.suite import (
    analysis,
    captured,
    explorer,
    folder,
    gradients,
    imports,
    interaction,
    large,
    overlay,
    page,
    probes,
)

MIB = 2**20
GB = 10**9
Key = tuple[str, str, str, str]


def _bars(benchmark: str, contestant: str, limits: dict[str, float], kind: str = "time") -> dict[Key, float]:
    return {(benchmark, case, contestant, kind): limit for case, limit in limits.items()}


_FIVE = [shape.title for shape in FIVE]
_PAIR = [B_16.title, B_14.title]
BARS: dict[Key, float] = {
    **_bars("analysis", analysis.MEAN, dict(zip(_FIVE, (1.3, 1.06, 1.2, 1.2, 1.6), strict=True))),
    **_bars("analysis", analysis.MAX, dict(zip(_FIVE, (1.4, 1.1, 1.3, 1.3, 1.8), strict=True))),
    **_bars("analysis", analysis.MEAN, {B_14.title: 150 * MIB, S_8.at(480).title: 260 * MIB}, "memory"),
    **_bars("analysis", analysis.MAX, {B_14.title: 150 * MIB, S_8.at(480).title: 260 * MIB}, "memory"),
    **_bars("captured", captured.CAPTURED, dict(zip(_PAIR, (1.35, 1.3), strict=True))),
    **_bars("probes", probes.WITH, {case.name: 1.0 for case in probes.BENCHMARK.cases}, "interval"),
    **_bars("gradients", gradients.RELEVANCE, {B_14.title: 2.7}),
    **_bars("gradients", gradients.RELEVANCE, {B_14.title: 550 * MIB}, "memory"),
    **_bars("interaction", interaction.ROWS, dict.fromkeys(_PAIR, 0.002)),
    **_bars("interaction", interaction.MEAN, dict(zip(_PAIR, (0.04, 0.25), strict=True))),
    **_bars("interaction", interaction.MAX, dict(zip(_PAIR, (0.06, 0.35), strict=True))),
    **_bars("interaction", interaction.CACHED_MEAN, dict(zip(_PAIR, (0.001, 0.005), strict=True))),
    **_bars("interaction", interaction.CACHED_MAX, dict(zip(_PAIR, (0.01, 0.03), strict=True))),
    **_bars("overlay", overlay.VITVIZ, dict.fromkeys((overlay.PATCHES, overlay.SMOOTH), 1 / 50)),
    **_bars("imports", imports.VITVIZ, {imports.CASE: 1.15}),
    **_bars("folder", folder.MEAN, {TI_16.title: 1.25, B_16.title: 1.15}),
    **_bars("large", large.VITVIZ, {case.name: GB for case in large.BENCHMARK.cases}, "memory"),
    **_bars("page", page.SERVER, {case.name: 1.5 for case in page.BENCHMARK.cases}),
    ("explorer", explorer.BENCHMARK.title, B_16.title, explorer.HIGH): 17.0,
    ("explorer", explorer.BENCHMARK.title, B_14.title, explorer.HIGH): 33.0,
}
"""An upper limit by benchmark, case, contestant and kind: a ratio of times, bytes, or a fact by its name.

Of the kind ``"interval"``, the ratio has to lie in the confidence interval."""


def value_of(entry: Entry, kind: str) -> float | None:
    """The value of an entry that is compared with a bar of this kind."""
    if entry["kind"] == "facts":
        value: float | None = entry["values"].get(kind)
        return value
    if entry["kind"] == "memory":
        return entry["bytes"] if kind == "memory" else None
    return entry["ratio"]["median"] if entry["kind"] == "time" and kind in ("time", "interval") else None


def is_met(entry: Entry, kind: str, value: float, limit: float) -> bool:
    if kind != "interval":
        return value <= limit
    low, high = entry["interval"] or (limit + 1, limit - 1)
    return bool(low <= limit <= high)
