"""Run every case and write their table into ``docs/checked.md``: ``python -m tests.parity.table``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from tests.parity import CASES
from tests.parity.case import Case, Difference, compare

PAGE = Path(__file__).parents[2] / "docs" / "checked.md"
SECTION = re.compile(r"(?<=<!-- families -->\n).*?(?=\n<!-- /families -->)", re.DOTALL)
HEADER = (
    "| family | opens as | compared with | image sizes | output | attention weights |",
    "| --- | --- | --- | --- | --- | --- |",
)
# Layouts that no package writes any more: what they mean stands in our own words in the tests.
TAUGHT = "the layout written out in `tests/parity/taught.py`"
STORED = "numbers stored from its own code"
# By the family of a case.
PACKAGES = {
    **dict.fromkeys(("dino", "dinov2"), STORED),
    **dict.fromkeys(("vit-pytorch-first", "multihead", "sequential", "jax-port"), TAUGHT),
    **dict.fromkeys(("timm", "google-npz", "watched by timm"), "timm"),
    **dict.fromkeys(("transformers-vit", "watched by transformers"), "transformers"),
    "watched by open_clip": "open_clip_torch",
    "vit-pytorch": "vit-pytorch",
}
KINDS = ("trained", "other sizes", "not square")


def kinds(cases: Iterable[Case]) -> str:
    """Which kinds of image sizes were compared."""
    found = {"trained"}
    for case in cases:
        found |= {"other sizes"} if len(set(case.sizes)) > 1 else set()
        found |= {"not square"} if any(height != width for height, width in case.sizes) else set()
    return ", ".join(kind for kind in KINDS if kind in found)


def package(case: Case) -> str:
    """What a case is compared with, and its version."""
    name = PACKAGES[case.family]
    return name if name in (TAUGHT, STORED) else f"{name} {version(name)}"


def opened(cases: Iterable[Case]) -> str:
    """In which network the cases of a row open."""
    return ", ".join(dict.fromkeys("watched" if case.is_watched else "own network" for case in cases))


def by_row(cases: Iterable[Case]) -> dict[str, list[Case]]:
    """The cases of each row, in their order."""
    rows: dict[str, list[Case]] = {}
    for case in cases:
        rows.setdefault(case.row, []).append(case)
    return rows


def table(differences: Mapping[Case, Difference]) -> str:
    """One line for each row, with the largest differences of its cases."""
    lines = [
        f"| {row} | {opened(cases)} | {package(cases[0])} | {kinds(cases)} "
        f"| {max(differences[case].output for case in cases):.1e} "
        f"| {max(differences[case].attention for case in cases):.1e} |"
        for row, cases in by_row(differences).items()
    ]
    return "\n".join((*HEADER, *lines))


def written(text: str, content: str) -> str:
    """The text of a page with another table in it.

    Raises:
        ValueError: it has no place for the table.
    """
    changed, count = SECTION.subn(lambda _: content, text)
    if count != 1:
        raise ValueError("the page has no place for the table: expected <!-- families --> and <!-- /families --> once")
    return changed


def main() -> None:
    torch.set_num_threads(1)
    differences = {}
    for case in CASES:
        with TemporaryDirectory() as folder:
            _, differences[case] = compare(case, Path(folder))
    content = table(differences)
    print(content)
    PAGE.write_text(written(PAGE.read_text(), content))


if __name__ == "__main__":
    main()
