"""How error messages show values, file names, legal choices and the name that was probably meant."""

from __future__ import annotations

import math
import re
import reprlib
import unicodedata
from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from vitviz.errors.words import WORDS

# Twice as long as any legal name.
MAX_MISSPELT_CHARS = 1000


def choices(options: Iterable[object]) -> str:
    """The legal choices as an error message lists them: ``'mean', 'max' or 'min'``, or that there are none."""
    names = [repr(option) for option in options] or ["nothing"]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


def nearest(name: object, legal: Iterable[object], similarity: float = 0.6) -> str | None:
    """The legal name most similar to a misspelt one; None where none is as similar as ``similarity``, in [0, 1].

    Capitals, hyphens, spaces and underscores make no difference; names with different digits are not similar.
    """
    if not isinstance(name, str) or len(name) > MAX_MISSPELT_CHARS:
        return None
    digits = _digits(name)
    by_letters = {_letters(word): word for word in legal if isinstance(word, str) and _digits(word) == digits}
    matches = get_close_matches(_letters(name), by_letters, 1, similarity)
    return by_letters[matches[0]] if matches else None


def did_you_mean(name: object, legal: Iterable[object], similarity: float = 0.6) -> str:
    """The end of a sentence about a wrong name, ``"; did you mean 'rollout'?"``; empty where no name is similar.

    Another package's word for a legal name stands for it.
    """
    names = list(legal)
    meant = WORDS.get(name) if isinstance(name, str) else None
    match = meant if meant in names else nearest(name, names, similarity)
    return "" if match is None else f"; did you mean {match!r}?"


def _digits(name: str) -> list[str]:
    return sorted(re.findall(r"\d", name))


def _letters(name: str) -> str:
    return name.casefold().translate(dict.fromkeys(map(ord, " -_")))


_SHORT_REPR = reprlib.Repr()
_SHORT_REPR.maxstring = _SHORT_REPR.maxother = 120
# reprlib bounds each item, but items add up in lists of lists.
MAX_REPR_CHARS = 300
# Messages show the values of arrays up to this size, and only the shape of larger ones.
MAX_ARRAY_VALUES = 4
# Messages show the repr of an object, such as torch.float16, up to this length.
MAX_OBJECT_CHARS = 40


def quote(value: object) -> str:
    """A shortened repr of a value from a file: text in quotes, control characters escaped."""
    text = _SHORT_REPR.repr(value)
    return text if len(text) <= MAX_REPR_CHARS else f"{text[:MAX_REPR_CHARS]}…"


def describe(value: object) -> str:
    """A value of any type as a message shows it: plain values by their repr, arrays by shape, objects by type."""
    shape, name = getattr(value, "shape", None), type(value).__name__
    if isinstance(shape, tuple) and hasattr(value, "tolist"):
        # Torch's tensors that are sparse or on meta have no values at hand.
        layout = (
            "meta" if getattr(value, "is_meta", False) else str(getattr(value, "layout", "")).removeprefix("torch.")
        )
        if layout == "meta" or layout.startswith("sparse"):
            name = f"{layout} {name}"
        elif math.prod(shape) <= MAX_ARRAY_VALUES:
            return f"{name} of {quote(value.tolist())}"
        return f"{name} of shape {tuple(shape)}"
    if isinstance(value, tuple | list) and value and hasattr(value[0], "shape"):
        return f"{name} of {len(value)}, the first a {describe(value[0]).removeprefix('a ')}"
    if value is None or isinstance(value, str | bytes | int | float | complex | tuple | list | set | dict):
        # The repr of a list's items may span several lines.
        return " ".join(quote(value).split())
    text = repr(value)
    if len(text) <= MAX_OBJECT_CHARS and "<" not in text:
        return text
    return with_article(name)


def with_article(name: str) -> str:
    """The name of a class with its indefinite article: ``"a Model"``, ``"an Analysis"``."""
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"


def plain(text: str) -> str:
    """A text as :func:`quote` gives it, but without quotes if nothing in it is escaped or shortened."""
    quoted = quote(text)
    return text if quoted[1:-1] == text else quoted


_NAME_REPR = reprlib.Repr()
_NAME_REPR.maxstring = 1000
# Joiners shape letters and emoji, and some languages need them.
_JOINERS = "\u200c\u200d"


def utf8(text: str) -> str:
    """A text that UTF-8 can hold: the bytes of a file's name that are not UTF-8 are written as in URLs, as %E9."""
    return re.sub(r"[\ud800-\udfff]", lambda byte: f"%{ord(byte[0]) & 0xFF:02X}", text)


def legible(name: str) -> str:
    """A file's name as a message shows it: one line of bounded length.

    A name with line breaks, invisible characters, or marks that move the text around it (such as right-to-left marks)
    is quoted and escaped.
    """
    visible = "".join("-" if letter in _JOINERS or unicodedata.category(letter) == "Zs" else letter for letter in name)
    return name if visible.isprintable() and len(name) <= _NAME_REPR.maxstring else _NAME_REPR.repr(name)


def listing(names: Iterable[str], limit: int = 4) -> str:
    """The first names, quoted, and how many more there are."""
    return several(list(map(quote, names)), limit)


def several(texts: Sequence[str], limit: int = 4) -> str:
    """The first of many texts as they are, and how many more there are."""
    rest = len(texts) - limit
    return ", ".join(texts[:limit]) + f" and {rest:,} more" * (rest > 0)
