"""What vitviz raises.

VitvizError
├── ImageError        a file, array or picture that cannot be used as an image
├── ConfigError       a model or run configuration that contradicts itself
├── CheckpointError   a file that is not a checkpoint vitviz can load exactly
├── QueryError        a layer, head or token that the model does not have
├── MethodError       a method or parameter that does not exist or does not apply to the model
├── DataError         a training set that cannot be trained on
└── LimitError        an analysis that would need more memory than it may take

Every message names the input, what was found, what was expected and, where there is a choice, the legal ones.
"""

from __future__ import annotations

import reprlib
import unicodedata
from collections.abc import Iterable, Sequence


class VitvizError(Exception):
    """Base of every error that vitviz raises on purpose."""


class ImageError(VitvizError):
    """A file, array or picture cannot be used as an image."""


class ConfigError(VitvizError):
    """A model or run configuration contradicts itself."""


class CheckpointError(VitvizError):
    """A file is not a checkpoint that vitviz can load exactly."""


class QueryError(VitvizError):
    """A layer, head or token is asked for that the model does not have."""


class MethodError(VitvizError):
    """A method or a parameter of one does not exist, or does not apply to this model."""


class DataError(VitvizError):
    """A folder of images cannot be trained or evaluated on."""


class LimitError(VitvizError):
    """An analysis would need more memory than it may take."""


def choices(options: Iterable[object]) -> str:
    """The legal choices as they stand in an error message: ``'mean', 'max' or 'min'``."""
    names = [repr(option) for option in options]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


_SHOWN = reprlib.Repr()
_SHOWN.maxstring = _SHOWN.maxother = 120


def shown(value: object) -> str:
    """What a file holds as it stands in a message: a text in quotes, without control characters, shortened."""
    return _SHOWN.repr(value)


def plain(text: str) -> str:
    """A text in the same way, without quotes where it needs none."""
    quoted = shown(text)
    return text if quoted[1:-1] == text else quoted


_NAMES = reprlib.Repr()
_NAMES.maxstring = 1000
# Joiners shape letters and emoji; without them, some languages' names are misspelt.
_JOINERS = "\u200c\u200d"


def legible(name: str) -> str:
    """The name of a file as it stands in a message: in one line, whatever it holds, and never endless.

    A name that breaks the line, moves the text around it (as right-to-left marks do) or has other characters that are
    not seen is written with escapes, in quotes.
    """
    seen = "".join("-" if letter in _JOINERS or unicodedata.category(letter) == "Zs" else letter for letter in name)
    return name if seen.isprintable() and len(name) <= _NAMES.maxstring else _NAMES.repr(name)


def listed(names: Iterable[str], most: int = 4) -> str:
    """The first names, quoted, and how many more there are."""
    return several(list(map(shown, names)), most)


def several(texts: Sequence[str], most: int = 4) -> str:
    """The first of many texts as they are, and how many more there are."""
    rest = len(texts) - most
    return ", ".join(texts[:most]) + f" and {rest:,} more" * (rest > 0)
