"""The fields of a page's state: what is legal in each, and how a link says it."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import Field, dataclass, field, fields
from typing import Any

from vitviz.attribution.json_values import number, switch, word
from vitviz.attribution.parameters import INTEGER, Kind, decimal_of, integer_of, pair_of
from vitviz.attribution.requests import MAX_INDEX, Bounds
from vitviz.errors.kinds import MethodError
from vitviz.errors.messages import quote
from vitviz.ui.arguments import kept_picture
from vitviz.ui.pictures import PICTURE, is_picture
from vitviz.visualization.scales import percentile_pair
from vitviz.weights import BUNDLED, ZOO

START = "start"
"""The word of links for the model with which the app starts."""
NATIVE = "native"
"""The resolution that stands for the picture's own."""
MAX_RESOLUTION = 99_999
HUB_MODEL = re.compile(r"hf:\w[\w.-]{0,95}/\w[\w.-]{0,95}(@[\w./-]{1,96})?", re.ASCII)
OWN_MODEL = re.compile(r"own:[\w-]{22}", re.ASCII)
# Of any model and picture.
ANYTHING = Bounds(other_picture=kept_picture)


@dataclass(frozen=True)
class OneOf(Kind):
    """One of some words."""

    words: Collection[str]

    def read(self, value: object, bounds: Bounds, field: str) -> str:
        return word(field, value, self.words)


@dataclass(frozen=True)
class Between(Kind):
    """A number between two bounds, both included; ``whole`` for whole numbers."""

    minimum: float
    maximum: float
    whole: bool = True

    def read(self, value: object, bounds: Bounds, field: str) -> float:
        return number(field, value, self.minimum, self.maximum, whole=self.whole)

    def parse(self, text: str) -> float:
        return integer_of(text) if self.whole else decimal_of(text)


class Switch(Kind):
    """True or false."""

    def read(self, value: object, bounds: Bounds, field: str) -> bool:
        return switch(field, value)

    def parse(self, text: str) -> bool:
        if text not in ("true", "false"):
            raise MethodError("expected true or false")
        return text == "true"


class ModelName(Kind):
    """The name of a model; a visitor's own checkpoint has no text in a link."""

    def read(self, value: object, bounds: Bounds, field: str) -> str:
        if not is_model(value):
            raise MethodError(f"{field} = {quote(value)}: expected a name of the menu, hf:OWNER/NAME, or nothing")
        return str(value)

    def parse(self, text: str) -> str:
        return "" if text == START else text

    def text(self, value: str) -> str:
        return value or START


class PictureName(Kind):
    """``example:NAME`` or ``picture:ID``."""

    def read(self, value: object, bounds: Bounds, field: str) -> str:
        if not is_picture(value):
            raise MethodError(f"{field} = {quote(value)}: {PICTURE}")
        return str(value)


class Resolution(Between):
    """The shorter side in pixels, or :data:`NATIVE`."""

    def read(self, value: object, bounds: Bounds, field: str) -> Any:
        return NATIVE if value == NATIVE else super().read(value, bounds, field)

    def parse(self, text: str) -> Any:
        return int(text) if INTEGER.fullmatch(text) else text


class Percentiles(Kind):
    """The lower and the upper end of a robust scale."""

    def read(self, value: object, bounds: Bounds, field: str) -> tuple[float, float]:
        return percentile_pair(field, value)

    def parse(self, text: str) -> tuple[float, ...]:
        return tuple(map(decimal_of, text.split(",")))


class Place(Kind):
    """Layer and head, or row and column."""

    def read(self, value: object, bounds: Bounds, field: str) -> tuple[int, int]:
        if not isinstance(value, list | tuple) or len(value) != 2:
            raise MethodError(f"{field} = {quote(value)}: expected a list of two whole numbers")
        first, second = (int(number(field, index, 0, MAX_INDEX - 1, whole=True)) for index in value)
        return first, second

    def parse(self, text: str) -> tuple[int, int]:
        return pair_of(text)

    def text(self, value: tuple[int, int]) -> str:
        return f"{value[0]}.{value[1]}"


@dataclass(frozen=True)
class Several(Kind):
    """Different values of one kind; ``is_sorted`` where their order means nothing."""

    each: Kind
    most: int
    is_sorted: bool = False

    def read(self, value: object, bounds: Bounds, field: str) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple) or len(value) > self.most:
            found = f"{len(value):,} entries" if isinstance(value, list | tuple) else quote(value)
            raise MethodError(f"{field} = {found}: expected a list of at most {self.most:,}")
        items = dict.fromkeys(self.each.kept(item, bounds, field) for item in value)
        return tuple(sorted(items) if self.is_sorted else items)

    def parse(self, text: str) -> tuple[Any, ...]:
        return tuple(self.each.parse(item) for item in text.split(";") if item)

    def text(self, value: tuple[Any, ...]) -> str:
        return ";".join(map(self.each.text, value))


def of_kind(kind: Kind, default: Any, *, none: str = "", key: str = "") -> Any:
    """A field of a state.

    Args:
        kind: of its values.
        default: of the field.
        none: the word of links for None; empty if None is not legal.
        key: of the field in links; its name with hyphens by default.
    """
    return field(default=default, metadata={"kind": kind, "none": none, "key": key})


def fields_of(state: Any) -> dict[str, Field[Any]]:
    """The fields of a state that have a kind, by their keys in links."""
    found = [each for each in fields(state) if "kind" in each.metadata]
    return {each.metadata["key"] or each.name: each for each in found}


def check_fields(state: Any) -> None:
    """Replace the values of a new state by those that their kinds keep.

    Raises:
        MethodError: a field is not legal.
    """
    for each in fields_of(state).values():
        value = getattr(state, each.name)
        if value is not None or not each.metadata["none"]:
            object.__setattr__(state, each.name, each.metadata["kind"].kept(value, ANYTHING, each.name))


def field_text(each: Field[Any], value: Any) -> str:
    """The text of a field's value in a link."""
    return each.metadata["none"] if value is None else each.metadata["kind"].text(value)


def parse_field(each: Field[Any], text: str) -> Any:
    """The value of a field by its text in a link, not checked yet.

    Raises:
        MethodError: it is none.
    """
    return None if text and text == each.metadata["none"] else each.metadata["kind"].parse(text)


def is_model(value: object) -> bool:
    """Whether a value is the name of a model in a state."""
    if not isinstance(value, str):
        return False
    named = value == "" or value in BUNDLED or value in ZOO
    return named or HUB_MODEL.fullmatch(value) is not None or OWN_MODEL.fullmatch(value) is not None
