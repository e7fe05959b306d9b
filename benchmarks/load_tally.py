"""The results of :mod:`benchmarks.load`: times, memory and faults, and their tables."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from math import inf

import numpy as np

from benchmarks.tables import mebibytes, seconds, significant, table

# The stage whose times are those of a visitor without others.
ALONE = "alone"
# Of memory after the last two stages, which are alike.
MAX_GROWTH = 1.1
# The memory budget in the app's settings, and the tolerated ratio of its peak memory to that budget.
BUDGET_BYTES, MAX_BUDGET_RATIO = 3 * 2**30, 1.15


@dataclass
class Tally:
    """The results of a load test.

    Args:
        times: in seconds, by what was waited for and stage.
    """

    times: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    memory_bytes: dict[str, int] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    rows_checked: int = 0

    @property
    def growth(self) -> float:
        """Memory after the last stage, over that after the one before."""
        after = [count for name, count in self.memory_bytes.items() if name.startswith("after ")]
        return after[-1] / after[-2] if len(after) > 1 else inf

    @property
    def budget_ratio(self) -> float:
        """Peak memory of the app, over what it may take."""
        return max(self.memory_bytes.values(), default=0) / BUDGET_BYTES

    @property
    def is_good(self) -> bool:
        """Whether nothing went wrong; times are not judged."""
        is_bounded = self.growth <= MAX_GROWTH and self.budget_ratio <= MAX_BUDGET_RATIO
        return not self.faults and is_bounded

    @property
    def faults(self) -> list[str]:
        """What went wrong, and the errors and warnings in the log."""
        return [*self.errors, *(line for line in self.log if re.match(r"\S*(Error|Exception|Warning)\b", line))]


def tables(tally: Tally) -> str:
    """The tables in Markdown, and every fault in a line."""
    times = {
        f"{kind}, {stage}": {
            "number": str(len(taken)),
            "median": seconds(float(np.median(taken))),
            "95 %": seconds(float(np.percentile(taken, 95))),
            "95 %, over the median of one alone": significant(
                float(np.percentile(taken, 95) / np.median(tally.times.get((kind, ALONE), inf)))
            ),
        }
        for (kind, stage), taken in sorted(tally.times.items())
    }
    counts = {
        "rows checked": tally.rows_checked,
        "errors": len(tally.faults),
        "memory after the last stage, over that after the one before": tally.growth,
        "most memory, over what the app may take": tally.budget_ratio,
    }
    lines = []
    for title, rows in {
        "Analyses, from asking to the answer; maps, from the upload to a layer; layers": times,
        "Memory of the app": {name: {"": mebibytes(count)} for name, count in tally.memory_bytes.items()},
        "All visits": {name: {"found": significant(count)} for name, count in counts.items()},
    }.items():
        lines += [f"## {title}", "", *table(rows), ""]
    return "\n".join([*lines, *(f"- {fault}" for fault in tally.faults)])
