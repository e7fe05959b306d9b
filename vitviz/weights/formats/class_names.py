"""The names of classes that a checkpoint's own file states beside its tensors, under the names that people use."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

# Entries with a list of names, or with a dict from or to their numbers.
ENTRIES = (
    *("class_names", "classes", "labels", "label_names", "class_to_idx", "idx_to_class", "id2label", "label2id"),
    *("CLASSES", "CLASS_NAMES"),
)
# Where they stand; the last two are of OpenMMLab's packages.
PLACES = ("", "args", "hyper_parameters", "hparams", "config", "meta", "meta.dataset_meta")
MAX_LABEL_CHARS, MAX_JSON_CHARS = 200, 2**20
NUMBER = re.compile(r"0|[1-9][0-9]{0,6}")


class ClassNames(NamedTuple):
    """The names of classes at one place of a file.

    Args:
        names: of the classes from 0 on; those of one place are distinct.
        problem: why they are no such names; empty where they are.
    """

    names: tuple[str, ...]
    problem: str = ""


class Namespace:
    """Stands for an object of a file whose attributes are plain values."""

    entries: Mapping[Any, Any] = {}


def find_class_names(file: Any) -> dict[str, ClassNames]:
    """The names of classes in what a file of ``torch.save`` holds, by their path, such as ``"args.class_names"``."""
    found = {}
    for place in PLACES:
        section = file
        for name in filter(None, place.split(".")):
            section = _entries(_entries(section).get(name))
        for entry in ENTRIES:
            names = _names_of(_entries(section).get(entry))
            if names is not None:
                found[f"{place}.{entry}".lstrip(".")] = names
    return found


def names_in_texts(metadata: Mapping[str, str]) -> dict[str, ClassNames]:
    """The same in the header of a safetensors file, whose entries are texts: those that are JSON."""
    values = {}
    for entry in ENTRIES:
        text = metadata.get(entry, "")
        if text[:1] in "[{" and 0 < len(text) <= MAX_JSON_CHARS:
            try:
                values[entry] = json.loads(text)
            except (ValueError, RecursionError):
                continue
    return find_class_names(values)


def _entries(value: Any) -> Mapping[Any, Any]:
    if isinstance(value, Namespace):
        return value.entries
    return value if isinstance(value, dict) else {}


def _names_of(value: Any) -> ClassNames | None:
    """The names in an entry; None if it holds no texts, such as the number of classes."""
    if isinstance(value, list | tuple):
        return _checked(enumerate(value)) if any(isinstance(each, str) for each in value) else None
    if not isinstance(value, dict) or not value:
        return None
    if all(isinstance(number, int) and not isinstance(number, bool) for number in value.values()):
        return _checked((number, name) for name, number in value.items())
    if all(isinstance(name, str) for name in value.values()):
        return _checked((_number(number), name) for number, name in value.items())
    return None


def _number(key: Any) -> int:
    """The number of a class as a key; -1 for another key."""
    if isinstance(key, str):
        return int(key) if NUMBER.fullmatch(key) else -1
    return key if isinstance(key, int) and not isinstance(key, bool) else -1


def _checked(pairs: Iterable[tuple[int, Any]]) -> ClassNames:
    names: dict[int, str] = {}
    chars = count = 0
    for number, name in pairs:
        count += 1
        if not isinstance(name, str) or not name.strip():
            return ClassNames((), "has an entry that is no name")
        chars += len(json.dumps(name)) if len(name) <= MAX_LABEL_CHARS else MAX_JSON_CHARS
        if chars > MAX_JSON_CHARS:
            return ClassNames((), "has names that are too long")
        names[number] = name
    if len(names) < count or names.keys() != set(range(count)):
        return ClassNames((), f"does not number its {count:,} names from 0 on")
    if len(set(names.values())) < count:
        return ClassNames((), "has the same name twice")
    return ClassNames(tuple(names[number] for number in range(count)))
