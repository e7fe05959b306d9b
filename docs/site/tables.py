"""Writes the tables of docs/ that the code can make: ``python -m docs.site.tables``. A test holds the pages to them."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import vitviz

DOCS = Path(__file__).resolve().parents[1]


def names() -> str:
    """The public names of vitviz, each with the first sentence of its docstring."""
    rows = []
    for name in vitviz.__all__:
        value = getattr(vitviz, name)
        if name == "METHODS":
            continue
        first = (inspect.getdoc(value) or "").split("\n\n")[0].replace("\n", " ")
        plain = re.sub(r":\w+:`[~.]?(?:vitviz\.)?([^`]+)`", r"`\1`", first).replace("``", "`").replace("|", "\\|")
        rows.append(f"| `{name}` | {plain} |")
    return "\n".join(["| name | what it is |", "| --- | --- |", *rows])


TABLES = {"python.md": ("names", names)}


def with_table(text: str, name: str, table: str) -> str:
    """A document with another table between its marks."""
    start, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
    before, _, rest = text.partition(start)
    return f"{before}{start}{table}\n{end}{rest.partition(end)[2]}"


def main() -> None:
    """Write all tables into their pages."""
    for file, (name, make) in TABLES.items():
        path = DOCS / file
        path.write_text(with_table(path.read_text(), name, make()))


if __name__ == "__main__":
    main()
