"""The names of classes that a checkpoint's own file, or one beside it, states under the names that people use."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

# Entries with a list of names, or with a dict from or to their numbers.
ENTRIES = (
    *("class_names", "classes", "labels", "label_names", "class_to_idx", "idx_to_class", "id2label", "label2id"),
    *("CLASSES", "CLASS_NAMES"),
)
# Where they stand but for the file itself; the last two are of OpenMMLab's packages.
PLACES = ("args", "hyper_parameters", "hparams", "config", "meta", "meta.dataset_meta")
# What transformers writes for classes without names.
PLACEHOLDER = re.compile(r"LABEL_\d+")


def find_class_names(file: Mapping[Any, Any]) -> dict[str, tuple[str, ...]]:
    """The names of classes in what a file holds, by their path, such as ``"args.class_names"``.

    Args:
        file: entries of ``torch.save``, or the texts in a header of safetensors, some of which are JSON.

    Returns:
        The names from class 0 on; none where an entry has texts, but no name for each class from 0 on.
    """
    sections: dict[str, Any] = {"": file}
    for place in PLACES:
        outer, _, name = place.rpartition(".")
        sections[place] = _entries(sections[outer]).get(name)
    found = {
        f"{place}.{entry}".lstrip("."): names_of(_entries(section).get(entry))
        for place, section in sections.items()
        for entry in ENTRIES
    }
    return {path: names for path, names in found.items() if names is not None}


def _entries(value: Any) -> Mapping[Any, Any]:
    """The entries of a dict, or of the stand-in of a namespace."""
    return value if isinstance(value, Mapping) else getattr(value, "entries", {})


def names_of(value: Any) -> tuple[str, ...] | None:
    """The names in an entry, from class 0 on; empty if it names other classes.

    None if there is nothing but placeholders or other values, such as the number of classes.
    """
    with suppress(TypeError, ValueError):
        value = json.loads(value)
    listed = value if isinstance(value, list | tuple) else ()
    pairs = [*value.items()] if isinstance(value, Mapping) else [*enumerate(listed)]
    if all(isinstance(number, int) for _, number in pairs):
        pairs = [(number, name) for name, number in pairs]
    if not any(isinstance(name, str) and not PLACEHOLDER.fullmatch(name) for _, name in pairs):
        return None
    names = {str(number): name for number, name in pairs}
    labels = [names.get(str(number)) for number in range(len(pairs))]
    return tuple(map(str, labels)) if all(isinstance(name, str) and name.strip() for name in labels) else ()
