"""Compare every published checkpoint in a folder, and write its row into ``docs/checked.md``.

VITVIZ_PUBLISHED=FOLDER python -m tests.published.table
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from datetime import date
from pathlib import Path

import torch

import tests.reference_packages  # noqa: F401  torchvision also where its operators belong to another torch
from tests.published.checks import VARIABLE, Figures, check, checkpoints
from tests.published.networks import NETWORKS
from vitviz.weights.verify import Comparison

PAGE = Path(__file__).parents[2] / "docs" / "checked.md"
SECTION = re.compile(r"(?<=<!-- published -->\n).*?(?=\n<!-- /published -->)", re.DOTALL)
HEADER = (
    "| checkpoint | network | checked | compared with | pixels | output | attention | sums of rows | kept numbers |",
    "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
)
COLUMNS = ("pixels", "output", "attention", "sums", "kept numbers")
NOT_RUN = "not run"


def row(name: str, title: str, day: date, figures: Figures) -> str:
    """One line of the table."""
    cells = [_cell(figures.comparisons.get(column)) for column in COLUMNS]
    return f"| {' | '.join((f'`{name}`', title, day.isoformat(), figures.reference, *cells))} |"


def _cell(comparison: Comparison | None) -> str:
    if comparison is None:
        return "–"
    return (
        f"{comparison.difference:.1e}"
        if comparison.exact
        else f"**{comparison.difference:.1e}, allowed {comparison.bound:.1e}**"
    )


def rows(text: str) -> dict[str, list[str]]:
    """The cells of the rows that a page has, by the name of the checkpoint.

    Raises:
        ValueError: it has no place for the table.
    """
    section = SECTION.search(text)
    if section is None:
        raise ValueError("the page has no place for the table: expected <!-- published --> and <!-- /published -->")
    lines = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in section[0].splitlines()[2:]]
    return {cells[0].strip("`"): cells for cells in lines}


def updated(text: str, measured: Mapping[str, Figures], day: date) -> str:
    """The text of a page with the rows of the measured checkpoints; all other rows stay."""
    existing = rows(text)
    lines = []
    for name in [*(name for name in {**existing, **measured} if name not in NETWORKS), *NETWORKS]:
        title = NETWORKS.get(name) or (existing[name][1] if name in existing else "")
        if name in measured:
            lines.append(row(name, title, day, measured[name]))
        elif name in existing:
            lines.append(f"| {' | '.join(existing[name])} |")
        else:
            lines.append(f"| {' | '.join((f'`{name}`', title, NOT_RUN, *[''] * 6))} |")
    return SECTION.sub(lambda _: "\n".join((*HEADER, *lines)), text)


def main() -> None:
    if VARIABLE not in os.environ:
        sys.exit(f"{VARIABLE} names no folder of published checkpoints")
    torch.set_num_threads(1)
    measured = {}
    for name, path in checkpoints(Path(os.environ[VARIABLE])).items():
        measured[name] = check(path)
        print(row(name, NETWORKS.get(name, ""), date.today(), measured[name]), flush=True)
        for sentence in measured[name].wrong:
            print(f"  {sentence}")
    PAGE.write_text(updated(PAGE.read_text(), measured, date.today()))


if __name__ == "__main__":
    main()
