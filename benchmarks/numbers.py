"""Numbers as text, and tables."""

from __future__ import annotations

from collections.abc import Mapping


def significant(value: float) -> str:
    """A number with three significant digits; from a thousand on, with all digits before the point."""
    return f"{value:,.0f}" if value == 0 or abs(value) >= 99.95 else f"{value:#.3g}"


def seconds(value: float) -> str:
    """A time in seconds, milliseconds or microseconds."""
    unit, factor = ("s", 1.0) if value >= 1 else ("ms", 1e3) if value >= 1e-3 else ("µs", 1e6)
    return f"{significant(value * factor)} {unit}"


def mebibytes(value: float) -> str:
    return f"{value / 2**20:,.0f} MiB"


def table(rows: Mapping[str, Mapping[str, str]], empty: str = "") -> list[str]:
    """The lines of a Markdown table of rows by name, each with its cells by column; ``empty`` where a row has none."""
    columns = list(dict.fromkeys(column for cells in rows.values() for column in cells))
    lines = [["", *columns], ["---"] * (1 + len(columns))]
    lines += [[name, *(cells.get(column, empty) for column in columns)] for name, cells in rows.items()]
    return [f"| {' | '.join(line)} |" for line in lines]
