"""Checks of JSON from programs, which may be of any type and size."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from vitviz.errors import arguments
from vitviz.errors.kinds import MethodError
from vitviz.errors.messages import choices, did_you_mean, quote


def word(field: str, value: object, legal: Collection[arguments.Word]) -> arguments.Word:
    """One of the legal words.

    Raises:
        MethodError: the value is another one.
    """
    return arguments.word(f"{field} =", value, legal)


def number(field: str, value: object, minimum: float, maximum: float, *, whole: bool = False) -> float:
    """A number in [minimum, maximum].

    Raises:
        MethodError: the value is no such number.
    """
    # Compared before it is converted: JSON may hold integers too large for a float. NaN is in no range.
    if isinstance(value, int | float) and not isinstance(value, bool) and minimum <= value <= maximum:
        if not whole:
            # Adding zero turns -0.0 into 0.0.
            return float(value) + 0.0
        if value == int(value):
            return int(value)
    raise MethodError(f"{field} = {quote(value)}: expected {number_range(minimum, maximum, whole)}")


def fields(field: str, value: object, legal: Collection[str]) -> dict[str, Any]:
    """An object that has no other fields than the legal ones.

    Raises:
        MethodError: the value is no object, or has another field.
    """
    if not isinstance(value, dict):
        raise MethodError(f"{field} = {quote(value)}: expected an object with {choices(legal)}")
    for name in value:
        if name not in legal:
            raise MethodError(f"{field} has no {quote(name)}: expected {choices(legal)}{did_you_mean(name, legal)}")
    return value


def number_range(minimum: float, maximum: float, whole: bool) -> str:
    """The numbers of a range in words."""
    return f"a {'whole ' * whole}number from {minimum:g} to {maximum:g}"


def encodable(name: str, text: str) -> str:
    """The text, if UTF-8 can encode it: JSON may hold halves of surrogate pairs."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise MethodError(f"{name} = {quote(text)}: expected whole characters") from None
    return text
