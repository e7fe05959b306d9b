"""What the tests of batches share: their request, its end, and the rows that were written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet

from vitviz import Model
from vitviz.datasets import BatchRequest, MapRequest
from vitviz.progress import Progress

COUNT = 12


def rows(output: Path) -> dict[str, dict[str, Any]]:
    """By path; fails where a picture is there twice."""
    found = parquet.read_table(output / "parts").to_pylist()
    assert len({row["path"] for row in found}) == len(found)
    return {row["path"]: row for row in found}


def asked(model: Model, **changes: Any) -> BatchRequest:
    maps = (MapRequest("rollout"), MapRequest("relevance", {"target": "class 2", "query": (1, 2)}))
    return BatchRequest(model, **{"maps": maps, "probes": ("attention_entropy", "token_norms"), **changes})


class Ended(Exception):
    """What a report of progress raises to end a run."""


def end_after(count: int) -> Callable[[Progress], None]:
    """A report that ends a run after so many pictures."""

    def report(state: Progress) -> None:
        if state.done == count:
            raise Ended

    return report
