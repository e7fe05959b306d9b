"""The results of :mod:`benchmarks.load`: times, memory and faults, and their tables."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from math import inf

import numpy as np

from benchmarks.numbers import significant, table

# Of memory after the last two stages, which are alike.
MAX_GROWTH = 1.1
# The memory budget in the app's settings, and the tolerated ratio of its peak memory to that budget.
BUDGET_BYTES, MAX_BUDGET_RATIO = 3 * 2**30, 1.15


@dataclass
class Tally:
    """The results of a load test."""

    analyses: dict[str, list[float]] = field(default_factory=dict)
    memory_bytes: dict[str, int] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    rows_checked: int = 0
    expired_count: int = 0
    open: int = 0
    most_open: int = 0
    requests: int = 0
    seconds: float = 0.0

    @property
    def growth(self) -> float:
        """Memory after the last stage, over that after the one before."""
        after = [count for name, count in self.memory_bytes.items() if name.startswith("after ")]
        return after[-1] / after[-2] if len(after) > 1 else inf

    @property
    def is_good(self) -> bool:
        """Whether nothing went wrong; times are not judged."""
        is_bounded = self.growth <= MAX_GROWTH and self.peak_bytes <= MAX_BUDGET_RATIO * BUDGET_BYTES
        return not self.faults and not self.expired_count and is_bounded

    @property
    def peak_bytes(self) -> int:
        """Peak memory of the app."""
        return max(self.memory_bytes.values(), default=0)

    @property
    def faults(self) -> list[str]:
        """What went wrong, and the errors and warnings in the log."""
        complaints = [line for line in self.log if re.match(r"\S*(Error|Exception|Warning)\b", line)]
        return [*self.errors, *complaints]

    def ratio(self, name: str) -> float:
        """The 95th percentile of the analyses, over the median of the visitor who was alone."""
        return float(np.percentile(self.analyses[name], 95) / np.median(self.analyses["alone"]))


def tables(tally: Tally) -> str:
    """The tables in Markdown, and every fault in a line."""
    times = {
        name: {
            "analyses": float(len(seconds)),
            "median, s": float(np.median(seconds)),
            "95 %, s": float(np.percentile(seconds, 95)),
            **({"95 %, over the median of one alone": tally.ratio(name)} if "alone" in tally.analyses else {}),
        }
        for name, seconds in tally.analyses.items()
    }
    counts = {
        "visitors at once, most": tally.most_open,
        "requests": tally.requests,
        "seconds": tally.seconds,
        "rows checked": tally.rows_checked,
        "errors": len(tally.faults),
        "analyses that had to be made again": tally.expired_count,
        "memory after the last stage, over that after the one before": tally.growth,
        "most memory, over what the app may take": tally.peak_bytes / BUDGET_BYTES,
    }
    lines = []
    for title, rows in {
        "From asking for an analysis to its answer": times,
        "Memory of the app": {name: {"MiB": count / 2**20} for name, count in tally.memory_bytes.items()},
        "All visits": {name: {"found": float(count)} for name, count in counts.items()},
    }.items():
        cells = {name: {each: significant(value) for each, value in row.items()} for name, row in rows.items()}
        lines += [f"## {title}", "", *table(cells), ""]
    return "\n".join([*lines, *(f"- {fault}" for fault in tally.faults)])
