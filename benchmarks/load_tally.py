"""The results of :mod:`benchmarks.load`: times, memory and faults, and their tables."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from math import inf

import numpy as np

from benchmarks.numbers import significant

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
    wrong_pictures: list[str] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    rows_checked: int = 0
    expired_count: int = 0
    open: int = 0
    most_open: int = 0
    requests: int = 0
    seconds: float = 0.0
    limit_error: str = ""

    @property
    def growth(self) -> float:
        """Memory after the last stage, over that after the one before."""
        after = [count for name, count in self.memory_bytes.items() if name.startswith("after ")]
        return after[-1] / after[-2] if len(after) > 1 else inf

    @property
    def is_good(self) -> bool:
        """Whether nothing went wrong; times are not judged."""
        faults = self.errors or self.wrong_pictures or self.complaints or self.limit_error or self.expired_count
        return not faults and self.growth <= MAX_GROWTH and self.peak_bytes <= MAX_BUDGET_RATIO * BUDGET_BYTES

    @property
    def peak_bytes(self) -> int:
        """Peak memory of the app."""
        return max(self.memory_bytes.values(), default=0)

    @property
    def complaints(self) -> list[str]:
        """The errors and warnings in the log."""
        return [line for line in self.log if re.match(r"\S*(Error|Exception|Warning)\b", line)]

    def ratio(self, name: str) -> float:
        """The 95th percentile of the analyses, over the median of the visitor who was alone."""
        return float(np.percentile(self.analyses[name], 95) / np.median(self.analyses["alone"]))


def facts_of(tally: Tally) -> dict[str, dict[str, dict[str, float]]]:
    """All results by table, row and column."""
    times = {
        name: {
            "analyses": float(len(seconds)),
            "median, s": float(np.median(seconds)),
            "95 %, s": float(np.percentile(seconds, 95)),
            **({"95 %, over the median of one alone": tally.ratio(name)} if "alone" in tally.analyses else {}),
        }
        for name, seconds in tally.analyses.items()
    }
    memory = {name: {"MiB": count / 2**20} for name, count in tally.memory_bytes.items()}
    counts = {
        "visitors at once, most": tally.most_open,
        "requests": tally.requests,
        "seconds": tally.seconds,
        "rows checked": tally.rows_checked,
        "mixed up": len(tally.wrong_pictures),
        "errors": len(tally.errors) + len(tally.complaints) + bool(tally.limit_error),
        "analyses that had to be made again": tally.expired_count,
        "memory after the last stage, over that after the one before": tally.growth,
        "most memory, over what the app may take": tally.peak_bytes / BUDGET_BYTES,
    }
    return {
        "From asking for an analysis to its answer": times,
        "Memory of the app": memory,
        "All visits": {name: {"found": float(count)} for name, count in counts.items()},
    }


def tables(tally: Tally) -> str:
    """The tables in Markdown, and every fault in a line."""
    lines = []
    for title, rows in facts_of(tally).items():
        names = list(dict.fromkeys(name for row in rows.values() for name in row))
        cells = [
            [name, *(significant(row[each]) if each in row else "" for each in names)] for name, row in rows.items()
        ]
        table_rows = [["", *names], ["---"] * (1 + len(names)), *cells]
        lines += [f"## {title}", "", *(f"| {' | '.join(row)} |" for row in table_rows), ""]
    faults = [
        *tally.wrong_pictures,
        *tally.errors,
        *tally.complaints,
        *([tally.limit_error] if tally.limit_error else []),
    ]
    return "\n".join([*lines, *(f"- {fault}" for fault in faults)])
