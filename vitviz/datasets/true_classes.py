"""The true class of a picture, where its folder has the name of one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence


def class_names(labels: Sequence[str]) -> dict[str, str]:
    """The labels by the names that a folder may have: the label, or one of its synonyms, which commas separate.

    Case, hyphens and underscores do not matter. A name of two classes belongs to neither.
    """
    names: dict[str, set[int]] = {}
    for number, label in enumerate(labels):
        for name in (label, *label.split(",")):
            names.setdefault(_plain(name), set()).add(number)
    return {name: labels[found.pop()] for name, found in names.items() if len(found) == 1}


def path_of(key: str) -> str:
    """The path of a picture, without the file and row of a table that hold it."""
    return re.sub(r"^.*?\.parquet#\d+ ", "", key.replace("\\", "/"))


def folder_of(key: str) -> str:
    """The folder of a picture, without those above it; empty for none."""
    return path_of(key).rpartition("/")[0].rpartition("/")[2]


def true_class(key: str, names: Mapping[str, str]) -> str | None:
    """The class that the picture's folder names; None if it names none.

    Args:
        key: of the picture's row, its path.
        names: as :func:`class_names` gives them.
    """
    return names.get(_plain(folder_of(key)))


def _plain(name: str) -> str:
    return " ".join(name.casefold().replace("_", " ").replace("-", " ").split())
