"""The JSON files beside a checkpoint."""

from __future__ import annotations

import json
import os
import re
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vitviz.errors import CheckpointError, choices

SIZE_LIMIT = 16 << 20
# Far above any real side, and small enough to divide by.
LONGEST_SIDE = 1_000_000


@dataclass(frozen=True)
class Sidecars:
    """The JSON files that timm, transformers and open_clip put beside a checkpoint; empty where there is none.

    Args:
        config: ``config.json``, timm's or transformers'.
        preprocessor: ``preprocessor_config.json``, or what ``processor_config.json`` has under ``image_processor``.
        open_clip: ``open_clip_config.json``.
        preprocessor_file: the name of the file that the preprocessor is from.
    """

    config: Mapping[str, Any] = field(default_factory=dict)
    preprocessor: Mapping[str, Any] = field(default_factory=dict)
    open_clip: Mapping[str, Any] = field(default_factory=dict)
    preprocessor_file: str = "preprocessor_config.json"

    @classmethod
    def read(cls, folder: str | os.PathLike[str]) -> Sidecars:
        """What there is of them in a folder.

        Raises:
            CheckpointError: a file cannot be read, is over 16 MiB, is not one JSON object or is nested too deeply.
        """
        folder = Path(folder)
        config, open_clip = _read_json(folder / "config.json"), _read_json(folder / "open_clip_config.json")
        # As transformers does: one file for all processors, where it has the image's, comes before the older one.
        file = "processor_config.json"
        nested = Section(_read_json(folder / file), file).inner("image_processor")
        if nested is not None:
            return cls(config, nested.values, open_clip, file)
        return cls(config, _read_json(folder / "preprocessor_config.json"), open_clip)


@dataclass(frozen=True)
class Section:
    """A JSON object, read with messages that say where it stands, what was found and what is legal."""

    values: Mapping[str, Any]
    place: str

    def get(self, name: str, default: Any = None) -> Any:
        """A value; null is as good as none."""
        value = self.values.get(name)
        return default if value is None else value

    def refuse(self, name: str, expected: str) -> CheckpointError:
        value = reprlib.repr(self.get(name, "nothing"))
        return CheckpointError(f"{self.place}: {name} = {value}: expected {expected}")

    def inner(self, name: str) -> Section | None:
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.refuse(name, "a JSON object")
        return Section(value, f"{name} in {self.place}")

    def flag(self, name: str, default: bool) -> bool:
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise self.refuse(name, "true or false")
        return value

    def choice(self, name: str, options: Mapping[str, str], default: str) -> str:
        value = self.get(name, default)
        if not isinstance(value, str) or value not in options:
            raise self.refuse(name, choices(options))
        return options[value]

    def numbers(self, name: str, default: tuple[float, ...], count: int) -> tuple[float, ...]:
        """One number for every channel; a single one is that of all."""
        value = self.get(name, list(default))
        if is_number(value):
            value = [value] * count
        if not isinstance(value, list) or len(value) != count or not all(map(is_number, value)):
            raise self.refuse(name, "a number" if count == 1 else f"{count} numbers")
        return tuple(value)

    def texts(self, name: str) -> dict[int, str]:
        """Texts by number, from a list or from an object with numbers for names; none where there is no such value."""
        value = self.get(name, [])
        if isinstance(value, list):
            value = dict(enumerate(value))
        if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
            raise self.refuse(name, "a text for every class")
        if not all(re.fullmatch(r"\d{1,9}", str(number)) for number in value):
            raise self.refuse(name, "texts by the number of their class")
        return {int(number): text for number, text in value.items()}


def _read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; an empty one where there is no such file."""
    if not path.is_file():
        return {}
    try:
        with path.open("rb") as file:
            text = file.read(SIZE_LIMIT + 1)
    except OSError as error:
        raise CheckpointError(f"{path.name}: cannot be read ({error.strerror})") from None
    if len(text) > SIZE_LIMIT:
        raise CheckpointError(f"{path.name}: over {SIZE_LIMIT >> 20} MiB; expected a small JSON object")
    try:
        values = json.loads(text.decode())
    except RecursionError:
        raise CheckpointError(f"{path.name}: nested too deeply; expected a small JSON object") from None
    except ValueError as error:
        raise CheckpointError(f"{path.name}: not JSON ({error})") from None
    if not isinstance(values, dict):
        raise CheckpointError(f"{path.name}: {reprlib.repr(values)}: expected a JSON object")
    return values


def is_number(value: object) -> bool:
    """Whether a JSON value is a number that can be calculated with."""
    # Not by math.isfinite: JSON has whole numbers that are too large for a float.
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e9


def is_side(value: object) -> bool:
    """Whether a JSON value can be a side of an image in pixels."""
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= LONGEST_SIDE


def is_pair(value: object) -> bool:
    """Whether a JSON value can be both sides of an image in pixels."""
    return isinstance(value, list) and len(value) == 2 and all(map(is_side, value))
