"""How an error's message shows what was found: values, names of files, legal choices, the name that was meant."""

from __future__ import annotations

import math
import re
import reprlib
import unicodedata
from collections.abc import Iterable, Sequence
from difflib import get_close_matches

# No name that is legal anywhere is half as long.
MAX_MISSPELT_CHARS = 1000


def choices(options: Iterable[object]) -> str:
    """The legal choices as they stand in an error message: ``'mean', 'max' or 'min'``."""
    names = [repr(option) for option in options]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


def nearest(name: object, legal: Iterable[object]) -> str | None:
    """The legal name most similar to a misspelt one; None where none is similar.

    Capitals, hyphens, spaces and underscores make no difference; names with different digits are not similar.
    """
    if not isinstance(name, str) or len(name) > MAX_MISSPELT_CHARS:
        return None
    digits = _digits(name)
    alike = {_letters(each): each for each in legal if isinstance(each, str) and _digits(each) == digits}
    found = get_close_matches(_letters(name), alike, 1)
    return alike[found[0]] if found else None


def did_you_mean(name: object, legal: Iterable[object]) -> str:
    """The end of a sentence about a misspelt name, ``"; did you mean 'rollout'?"``; empty where no name is similar."""
    found = nearest(name, legal)
    return "" if found is None else f"; did you mean {found!r}?"


def _digits(name: str) -> list[str]:
    return sorted(re.findall(r"\d", name))


def _letters(name: str) -> str:
    return name.casefold().translate(dict.fromkeys(map(ord, " -_")))


_SHOWN = reprlib.Repr()
_SHOWN.maxstring = _SHOWN.maxother = 120
# All values of one message together: short ones add up in lists of lists.
MAX_SHOWN_CHARS = 300
# A message shows the values of arrays up to this size, and only the shape of larger ones.
SHOWN_VALUES = 4
# A message shows the repr of an object, such as torch.float16, up to this length.
SHOWN_CHARS = 40


def shown(value: object) -> str:
    """A value from a file, as a message shows it: text in quotes, without control characters, shortened."""
    text = _SHOWN.repr(value)
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]}…"


def described(value: object) -> str:
    """A value of any type, as a message shows it: plain values as they are, arrays by shape, objects by type."""
    shape, name = getattr(value, "shape", None), type(value).__name__
    if isinstance(shape, tuple) and hasattr(value, "tolist"):
        if math.prod(shape) <= SHOWN_VALUES:
            return f"{name} of {shown(value.tolist())}"
        return f"{name} of shape {tuple(shape)}"
    if value is None or isinstance(value, str | bytes | int | float | complex | tuple | list | set | dict):
        # The repr of a list's items may span several lines.
        return " ".join(shown(value).split())
    written = repr(value)
    if len(written) <= SHOWN_CHARS and "<" not in written:
        return written
    return with_article(name)


def with_article(name: str) -> str:
    """The name of a class with its article: ``"a Model"``, ``"an Analysis"``."""
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"


def plain(text: str) -> str:
    """A text as :func:`shown` gives it, without quotes where it needs none."""
    quoted = shown(text)
    return text if quoted[1:-1] == text else quoted


_NAMES = reprlib.Repr()
_NAMES.maxstring = 1000
# Joiners shape letters and emoji; without them, some languages' names are misspelt.
_JOINERS = "\u200c\u200d"


def legible(name: str) -> str:
    """A file's name, as a message shows it: always one line of bounded length.

    A name that breaks the line, moves the text around it (as right-to-left marks do) or has other characters that are
    not seen is written with escapes, in quotes.
    """
    visible = "".join("-" if letter in _JOINERS or unicodedata.category(letter) == "Zs" else letter for letter in name)
    return name if visible.isprintable() and len(name) <= _NAMES.maxstring else _NAMES.repr(name)


def listed(names: Iterable[str], most: int = 4) -> str:
    """The first names, quoted, and how many more there are."""
    return several(list(map(shown, names)), most)


def several(texts: Sequence[str], most: int = 4) -> str:
    """The first of many texts as they are, and how many more there are."""
    rest = len(texts) - most
    return ", ".join(texts[:most]) + f" and {rest:,} more" * (rest > 0)
