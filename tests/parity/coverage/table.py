"""The tables of ``docs/models.md``."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def rows_of(file: Path) -> list[Row]:
    """The last line of every architecture."""
    lines = file.read_text().splitlines() if file.exists() else []
    rows = [json.loads(line) for line in lines]
    return list({(row["package"], row["name"]): row for row in rows}.values())


def tables(file: Path) -> str:
    """Markdown: for every module of every package, how many are exact, and what is said of the others."""
    rows, parts = rows_of(file), []
    for package in dict.fromkeys(row["package"] for row in rows):
        own = [row for row in rows if row["package"] == package]
        exact, wrong = (sum(row["result"] == result for row in own) for result in ("exact", "wrong"))
        heading = f"**{package}**: {exact} of {len(own)} exact, {wrong} wrong."
        head = (
            "| module | architectures | exact | weights differ by at most | others |\n| --- | --- | --- | --- | --- |"
        )
        groups = dict.fromkeys(row["group"] for row in own)
        lines = [_line(group, [row for row in own if row["group"] == group]) for group in groups]
        parts.append("\n".join([heading, "", head, *lines]))
    return "\n\n".join(parts)


def _line(group: str, rows: list[Row]) -> str:
    exact = [row for row in rows if row["result"] == "exact"]
    largest = max((row["weights"] for row in exact if row.get("weights") is not None), default=None)
    others = Counter(_reason(row) for row in rows if row["result"] != "exact")
    listed = "; ".join(f"{count} {reason}" for reason, count in others.items())
    figure = "–" if largest is None else f"{largest:.0e}"
    return f"| `{group}` | {len(rows)} | {len(exact)} | {figure} | {listed} |"


def _reason(row: Row) -> str:
    reason = re.sub(r"^\S+: ", "", row["reason"])
    return f"{row['result']}: {reason}".replace("|", "/")
