"""The lists of ``docs/checked.md``."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

Row = dict[str, Any]
# What is said of an architecture, and how the page says it: the first that is found.
KINDS = (
    ("differs by", "wrong"),
    ("another output than its fused", "its package's two ways to attend give two outputs"),
    ("no matrices to compare", "verified call by call; its package shows no matrices"),
    ("can only be built as large|of timm's|smallest size|processor time", "not run: too large here"),
    ("requires the natten", "not built: another package's kernel"),
    ("no attention was seen", "no attention between patches, or another package's kernel"),
    ("that vitviz does not support", "attention that is changed between its products (talking heads, outlooks, gates)"),
    ("padded windows, coarser keys", "padded windows, coarser keys or attention between channels among its layers"),
    ("several grids", "several grids, of which none can be told patch by patch (coarser keys, strong mixing)"),
    (r"windows|\d+ tokens changed with", "padded windows, or tokens that are no patches one by one"),
    ("softmaxes|calls of attention were seen", "some layers by another kernel, or more than once"),
    ("patches of its own making|grid_thw", "takes patches of its own making: needs forward="),
    ("does not take an image", "takes something else than an image: needs forward="),
    ("draws no random numbers", "random when it is run"),
    ("does not say|names \\d", "has to be told a size or its tokens"),
    ("the module returns", "returns no tensor that is known: needs forward="),
    ("not built", "its small configuration could not be made here"),
)


def rows_of(file: Path) -> list[Row]:
    """The last line of every architecture."""
    lines = file.read_text().splitlines() if file.exists() else []
    rows = [json.loads(line) for line in lines]
    return list({(row["package"], row["name"]): row for row in rows}.values())


def tables(file: Path) -> str:
    """Markdown: for every package, what is exact, by modules if these have several, and what is not."""
    rows, parts = rows_of(file), []
    for package in dict.fromkeys(row["package"] for row in rows):
        own = [row for row in rows if row["package"] == package]
        exact = [row for row in own if row["result"] == "exact"]
        wrong = sum(row["result"] == "wrong" for row in own)
        largest = max((row["weights"] for row in exact), default=0.0)
        found = f"{len(exact)} of {len(own)} architectures exact (weights within {largest:.0e}), {wrong} wrong"
        parts.append(f"**{package}**: {found}.")
        groups = list(dict.fromkeys(row["group"] for row in own))
        if len(groups) < len(own):
            counts = (f"`{group}` {_count(exact, group)} of {_count(own, group)}" for group in groups)
            parts.append(f"Exact: {', '.join(counts)}.")
        else:
            names = (f"`{row['name']}`" for row in exact)
            parts.append(f"Exact: {', '.join(names)}.")
        others: dict[str, list[str]] = defaultdict(list)
        for row in own:
            if row["result"] != "exact":
                others[_kind(row)].append(row["name"])
        parts.append("\n".join(f"- {kind}: `{'`, `'.join(names)}`" for kind, names in others.items()))
    return "\n\n".join(filter(None, parts))


def _count(rows: list[Row], group: str) -> int:
    return sum(row["group"] == group for row in rows)


def _kind(row: Row) -> str:
    text = f"{row['result']}: {row.get('reason', '')}"
    return next((said for pattern, said in KINDS if re.search(pattern, text)), row["result"])
