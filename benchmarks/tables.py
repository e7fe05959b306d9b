"""Numbers as text, tables of them, and the machine that they come from."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from datetime import date
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

PACKAGES = ("torch", "numpy", "einops", "timm", "transformers", "captum", "pyarrow", "tensorboard", "huggingface_hub")


def significant(value: float) -> str:
    """A number with three significant digits; from a thousand on, with all digits before the point."""
    return f"{value:,.0f}" if value == 0 or abs(value) >= 99.95 else f"{value:#.3g}"


def seconds(value: float) -> str:
    """A time in seconds, milliseconds or microseconds."""
    unit, factor = ("s", 1.0) if value >= 1 else ("ms", 1e3) if value >= 1e-3 else ("µs", 1e6)
    return f"{significant(value * factor)} {unit}"


def mebibytes(value: float) -> str:
    return f"{value / 2**20:,.0f} MiB"


def table(rows: Mapping[str, Mapping[str, str]], empty: str = "", corner: str = "") -> list[str]:
    """The lines of a Markdown table of rows by name, each with its cells by column.

    Args:
        rows: the cells.
        empty: where a row has no cell.
        corner: the title of the column of names.
    """
    columns = list(dict.fromkeys(column for cells in rows.values() for column in cells))
    lines = [[corner, *columns], ["---"] * (1 + len(columns))]
    lines += [[name, *(cells.get(column, empty) for column in columns)] for name, cells in rows.items()]
    return [f"| {' | '.join(line)} |" for line in lines]


def machine() -> dict[str, str | int]:
    """Processor, versions and date."""
    info = Path("/proc/cpuinfo")
    model = re.search(r"^model name\s*: (.+)$", info.read_text(), re.MULTILINE) if info.exists() else None
    return {
        "processor": model[1] if model else platform.processor() or platform.machine(),
        "cores": os.cpu_count() or 1,
        "system": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "versions": ", ".join(f"{name} {version(name)}" for name in PACKAGES if find_spec(name)),
        "date": date.today().isoformat(),
    }
