"""What :mod:`benchmarks.load` found: times, memory and faults, and their tables."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from math import inf

import numpy as np

from benchmarks.numbers import significant

# Parts of the visitors who come, one wave after the other.
WAVES = (1.0, 0.5)
MOST_GROWTH = 1.1
# Bytes that the app is told it may take, and how much more it may.
BUDGET, MOST_OF_BUDGET = 3 * 2**30, 1.15


@dataclass
class Tally:
    """What was found."""

    analyses: dict[str, list[float]] = field(default_factory=dict)
    slow: float | None = None
    held: dict[str, int] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    mixed: list[str] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    visits: list[int] = field(default_factory=list)
    checked: int = 0
    expired: int = 0
    open: int = 0
    most_open: int = 0
    busy: float = 0.0
    requests: int = 0
    seconds: float = 0.0
    stopped: str = ""

    @property
    def waves(self) -> list[int]:
        """Memory after each wave."""
        return [count for name, count in self.held.items() if name.startswith("after wave")]

    @property
    def growth(self) -> float:
        """Memory after the last wave, over that after the first."""
        return self.waves[-1] / self.waves[0] if self.waves else inf

    @property
    def is_good(self) -> bool:
        """Whether nothing went wrong. How long it took is for a person to judge."""
        faults = self.errors or self.mixed or self.complaints or self.stopped
        return not faults and self.growth <= MOST_GROWTH and self.most <= MOST_OF_BUDGET * BUDGET

    @property
    def most(self) -> int:
        """Most memory at any time."""
        return max(self.held.values(), default=0)

    @property
    def complaints(self) -> list[str]:
        """What the log has of errors."""
        return [line for line in self.log if re.match(r"\S*(Error|Exception|Warning)\b", line)]

    def ratio(self, name: str) -> float:
        """The 95th percentile of the analyses, over the median of the visitor who was alone."""
        return float(np.percentile(self.analyses[name], 95) / np.median(self.analyses["alone"]))


def facts_of(tally: Tally) -> dict[str, dict[str, dict[str, float]]]:
    """Everything by table, row and column."""
    times = {
        name: {
            "analyses": float(len(found)),
            "median, s": float(np.median(found)),
            "95 %, s": float(np.percentile(found, 95)),
            **({"95 %, over the median of one alone": tally.ratio(name)} if "alone" in tally.analyses else {}),
        }
        for name, found in tally.analyses.items()
    }
    memory = {name: {"MiB": count / 2**20} for name, count in tally.held.items()}
    counts = {
        "visitors at once, most": tally.most_open,
        "requests": tally.requests,
        "seconds": tally.seconds,
        "rows checked": tally.checked,
        "mixed up": len(tally.mixed),
        "errors": len(tally.errors) + len(tally.complaints) + bool(tally.stopped),
        "analyses that had to be made again": tally.expired,
        "memory after the last wave, over that after the first": tally.growth,
        "most memory, over what the app may take": tally.most / BUDGET,
        "processors busy after all have left": tally.busy,
    }
    if len(tally.waves) == len(WAVES) == len(tally.visits):
        counts["MiB more for each visitor of the last wave"] = (
            (tally.waves[-1] - tally.waves[0]) / 2**20 / tally.visits[-1]
        )
    counts |= {} if tally.slow is None else {"seconds of the large analysis": tally.slow}
    return {
        "From asking for an analysis to its answer": times,
        "Memory of the app": memory,
        "All visits": {name: {"found": float(count)} for name, count in counts.items()},
    }


def printed(tally: Tally) -> str:
    """The tables, and every fault in a line."""
    lines = []
    for title, rows in facts_of(tally).items():
        names = list(dict.fromkeys(name for row in rows.values() for name in row))
        cells = [
            [name, *(significant(row[each]) if each in row else "" for each in names)] for name, row in rows.items()
        ]
        whole = [["", *names], ["---"] * (1 + len(names)), *cells]
        lines += [f"## {title}", "", *(f"| {' | '.join(row)} |" for row in whole), ""]
    faults = [*tally.mixed, *tally.errors, *tally.complaints, *([tally.stopped] if tally.stopped else [])]
    return "\n".join([*lines, *(f"- {fault}" for fault in faults)])
