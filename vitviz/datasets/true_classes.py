"""The true class of a picture, where its folder has the name of one."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

# No folder has a name with this sign.
SEPARATOR = "/"


def class_names(labels: Sequence[str]) -> dict[str, str]:
    """The labels by the names that a folder may have: the label, or one of its synonyms, which commas separate.

    Case, hyphens and underscores matter only where they alone tell two classes apart. A name of two classes belongs to
    neither.
    """
    names: dict[str, set[int]] = {}
    for number, label in enumerate(labels):
        for name in (label, *label.split(",")):
            for form in _forms(name.strip()):
                names.setdefault(form, set()).add(number)
    return {name: labels[found.pop()] for name, found in names.items() if len(found) == 1}


def path_of(key: str) -> str:
    """The path of a picture, without the file and row of a table that hold it."""
    return re.sub(r"(?i)^.*?\.parquet#\d+ ", "", key.replace("\\", "/"))


def folder_of(key: str) -> str:
    """The folder of a picture, without those above it; empty for none."""
    return path_of(key).rpartition("/")[0].rpartition("/")[2]


def class_in(cell: Any, names: Sequence[str]) -> str | None:
    """The class in a cell of a table: a text, or the name of a number; a number itself where none has a name."""
    # As pandas writes whole numbers beside empty cells.
    cell = int(cell) if isinstance(cell, float) and cell.is_integer() else cell
    if isinstance(cell, int) and cell >= 0:
        return names[cell] if cell < len(names) else None if names else str(cell)
    return cell if isinstance(cell, str) else None


def true_class(key: str, names: Mapping[str, str], label: str | None = None) -> str | None:
    """The class of the model that the picture's table or folder names; None if it names none.

    Args:
        key: of the picture's row, its path.
        names: as :func:`class_names` gives them.
        label: the class that a table states.
    """
    forms = [*_forms(label or ""), *_forms(folder_of(key))]
    return next((names[form] for form in forms if form in names), None)


def _forms(name: str) -> tuple[str, str]:
    """A name with composed letters; and with a separator, so that it is never the first of another, without case."""
    name = unicodedata.normalize("NFC", name)
    return name, SEPARATOR + " ".join(name.casefold().replace("_", " ").replace("-", " ").split())
