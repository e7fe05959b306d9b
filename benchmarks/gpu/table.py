"""The page of tables, from the file of JSON lines."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

from benchmarks.gpu.card import text
from benchmarks.numbers import table

INTRODUCTION = """# On a graphics card

`benchmarks/gpu.sh` checks vitviz on a CUDA card against the processor, measures speed and memory, and writes this page;
the first lines of the script say what it needs. Times are medians of runs that take turns, from the call until the card
has done its work.

A mark says whether a number keeps a limit, ✓ or ✗. A number without a mark has no limit, and – was not measured:

- differences, as shares of the highest value: 1e-4 in float32, 0.05 in bfloat16, and 20 times as much for probes and
  scales;
- an analysis, which is logits and trace of a batch: 1.2 forward passes of the reference, 1.5 for a single picture of
  fewer than 1,370 tokens;
- memory at 1,370 tokens: a quarter of what `output_attentions=True` takes;
- a folder: 0.9 of the rate of its slower stage, opening or forward pass.

The *bundled* model ships with vitviz; *S/14* has random weights, once copied into vitviz's own engine and once captured
as a module. Where timm is missing, transformers is the reference. Costs of methods are
multiples of the forward pass too, and come on top of the analysis; *picture to analysis* begins with an array.
"""


def rows_of(results: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []


def page(rows: list[dict[str, Any]], facts: Mapping[str, str]) -> str:
    tables: dict[str, dict[str, dict[str, str]]] = {}
    for row in rows:
        tables.setdefault(row["table"], {})[row["row"]] = {name: text(cell) for name, cell in row["cells"].items()}
    lines = [INTRODUCTION, *(f"- {name}: {value}" for name, value in {**facts, "date": date.today()}.items())]
    for title, cells in tables.items():
        lines += ["", f"## {title}", "", *table(cells, empty=text(None))]
    return "\n".join([*lines, ""])
