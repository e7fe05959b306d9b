"""The page of tables, from the file of JSON lines."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

from benchmarks.gpu.card import text

INTRODUCTION = """# On a graphics card

`benchmarks/gpu.sh` measures this and writes this page. Times are medians of runs that take turns, from the call until
the card has done its work. A mark says whether a number keeps the limit that the project sets itself: ✓ or ✗. An
*analysis* is the logits and the trace of a batch. *Its least* is the time of the forward pass's products at the rate of
one large product.
"""


def rows_of(results: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []


def page(rows: list[dict[str, Any]], facts: Mapping[str, str]) -> str:
    tables: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        tables.setdefault(row["table"], []).append(row)
    machine = "\n".join(f"- {name}: {value}" for name, value in {**facts, "date": date.today().isoformat()}.items())
    return "\n".join([INTRODUCTION, machine, "", *(_table(title, each) for title, each in tables.items())])


def _table(title: str, rows: list[dict[str, Any]]) -> str:
    columns = list(dict.fromkeys(name for row in rows for name in row["cells"]))
    lines = [f"| | {' | '.join(columns)} |", f"| --- |{' --- |' * len(columns)}"]
    for row in rows:
        cells = (text(row["cells"].get(name)) for name in columns)
        lines.append(f"| {row['row']} | {' | '.join(cells)} |")
    return "\n".join([f"## {title}", "", *lines, ""])
