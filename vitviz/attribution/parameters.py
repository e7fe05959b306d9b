"""The kinds of parameters of methods and probes.

A kind is one class: it checks a value, describes itself to the page, the API and the command, and is written into a
link and into Python. A value is an argument of the library, or JSON that stands for one: of a program, a page or a
link.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from vitviz.attention.layout import PATCHES
from vitviz.attention.softmax import HEAD_FUSIONS
from vitviz.attribution.json_values import number, number_range, word
from vitviz.attribution.requests import Bounds, canonical_target, canonical_token, target_json, target_of, token_of
from vitviz.errors.kinds import MethodError
from vitviz.errors.messages import choices

INTEGER = re.compile(r"-?\d{1,12}", re.ASCII)
DECIMAL = re.compile(r"\d{1,6}(\.\d{1,20})?(e-?\d{1,3})?", re.ASCII)
PAIR = re.compile(r"(\d{1,6})[.,](\d{1,6})", re.ASCII)


class Kind(ABC):
    """What is legal in one place, and how it is written."""

    @abstractmethod
    def read(self, value: object, bounds: Bounds, field: str) -> Any:
        """The argument of the library for JSON of any kind but null; ``field`` names the value in messages.

        Raises:
            MethodError: it is not legal.
        """

    def kept(self, value: object, bounds: Bounds, field: str) -> Any:
        """The value, checked as by :meth:`read`, as the state of a page keeps it."""
        return self.read(value, bounds, field)

    def parse(self, text: str) -> Any:
        """The value that a link has as text, not checked yet.

        Raises:
            MethodError: it is none.
        """
        return text

    def text(self, value: Any) -> str:
        """The text of a value in a link, as :meth:`parse` reads it."""
        return text_of(value)


class Token(Kind):
    """A token of a picture."""

    def read(self, value: object, bounds: Bounds, field: str) -> Any:
        return token_of(field, value, bounds.layout)

    def parse(self, text: str) -> Any:
        return pair_of(text) if PAIR.fullmatch(text) else text


class Parameter(Kind):
    """A parameter of a method or a probe.

    Attributes:
        name: of the function's argument.
        title: label of the control.
        help: one line on its effect.
        default: its value; None stands for a value that depends on the model.
        kind: the word for its kind that the page and programs get.
        converter: the function of :mod:`vitviz.cli.grammar` that reads its option, by name; empty for text.
    """

    name: str
    title: str
    help: str
    default: Any
    kind: ClassVar[str]
    converter: ClassVar[str] = ""

    @property
    @abstractmethod
    def legal(self) -> str:
        """The legal values in words, for any model."""

    def canonical(self, value: object, bounds: Bounds) -> Any:
        """The value as every page keeps it that means the same, such as a layer counted from 0.

        Raises:
            MethodError: the model or the picture has no such value.
        """
        return self.read(value, bounds, f"parameters.{self.name}")

    def default_for(self, bounds: Bounds, target: object = None) -> Any:
        """The default as :meth:`canonical` gives values, of a map about a target."""
        return self.default

    def python(self, value: Any, labels: Sequence[str]) -> str:
        """A canonical value in Python; the labels are those of the model's classes."""
        return python_of(value)

    def facts(self) -> dict[str, Any]:
        """What a control needs."""
        names = ("name", "title", "kind", "help", "default")
        return {name: getattr(self, name) for name in names}

    @property
    def option(self) -> str:
        """The help of the command's option."""
        return f"{self.help} (default: {self.default})"


@dataclass(frozen=True)
class Choice(Parameter):
    """One of a few named values; ``options`` are pairs of label and value."""

    name: str
    title: str
    options: tuple[tuple[str, str | None], ...]
    default: str | None
    help: str
    kind: ClassVar[str] = "choice"

    @property
    def values(self) -> list[str]:
        """The values but None, which a missing one stands for."""
        return [value for _, value in self.options if value is not None]

    @property
    def legal(self) -> str:
        return choices(self.values)

    def read(self, value: object, bounds: Bounds, field: str) -> str:
        return word(field, value, self.values)

    def facts(self) -> dict[str, Any]:
        options = [{"title": title, "value": value} for title, value in self.options]
        return {**super().facts(), "options": options, "choices": self.values}

    @property
    def option(self) -> str:
        return f"{self.help} (default: {self.default or 'none'})"


@dataclass(frozen=True)
class Number(Parameter):
    """A number between two bounds, both included; ``whole`` for whole numbers."""

    name: str
    title: str
    minimum: float
    maximum: float
    step: float
    default: float
    help: str
    whole: bool = False
    kind: ClassVar[str] = "number"

    @property
    def converter(self) -> str:  # type: ignore[override]
        return "int" if self.whole else "float"

    @property
    def legal(self) -> str:
        return number_range(self.minimum, self.maximum, self.whole)

    def read(self, value: object, bounds: Bounds, field: str) -> float:
        return number(field, value, self.minimum, self.maximum, whole=self.whole)

    def parse(self, text: str) -> float:
        return int(text) if self.whole and INTEGER.fullmatch(text) else decimal_of(text)

    def facts(self) -> dict[str, Any]:
        names = ("minimum", "maximum", "step", "whole")
        return {**super().facts(), **{name: getattr(self, name) for name in names}}

    @property
    def option(self) -> str:
        return f"{self.help} ({self.minimum:g} to {self.maximum:g}, default: {self.default:g})"


@dataclass(frozen=True)
class LayerNumber(Parameter):
    """A layer of the model, counted from 0, or from the end as ``-1``.

    ``on_page`` says whether the page has a control for it.
    """

    name: str
    title: str
    default: int
    help: str
    on_page: bool = True
    kind: ClassVar[str] = "layer"
    converter: ClassVar[str] = "int"

    @property
    def legal(self) -> str:
        return "a layer, from 0 (nearest to the image), or from the end as -1"

    def read(self, value: object, bounds: Bounds, field: str) -> float:
        return number(field, value, -bounds.layers, bounds.layers - 1, whole=True)

    def canonical(self, value: object, bounds: Bounds) -> float:
        return super().canonical(value, bounds) % bounds.layers

    def default_for(self, bounds: Bounds, target: object = None) -> int:
        return self.default % bounds.layers

    def parse(self, text: str) -> int:
        return integer_of(text)

    def facts(self) -> dict[str, Any]:
        return {**super().facts(), "on_page": self.on_page}

    @property
    def option(self) -> str:
        return f"{self.help}; from 0, or from the end as -1 (default: {self.default})"


@dataclass(frozen=True)
class HeadNumber(Parameter):
    """A head of the model, counted from 0 or from the end as ``-1``, or a fusion of all its heads."""

    name: str
    title: str
    default: str
    help: str
    kind: ClassVar[str] = "head"
    converter: ClassVar[str] = "head"

    @property
    def legal(self) -> str:
        return f"a head, from 0 or from the end as -1, or {choices(HEAD_FUSIONS)} of all heads"

    def read(self, value: object, bounds: Bounds, field: str) -> float | str:
        if isinstance(value, str):
            return word(field, value, HEAD_FUSIONS)
        return number(field, value, -bounds.heads, bounds.heads - 1, whole=True)

    def canonical(self, value: object, bounds: Bounds) -> float | str:
        head = super().canonical(value, bounds)
        return head if isinstance(head, str) else head % bounds.heads

    def parse(self, text: str) -> int | str:
        return int(text) if INTEGER.fullmatch(text) else text

    @property
    def option(self) -> str:
        return f"{self.help} (counted from 0, or {', '.join(HEAD_FUSIONS)}; default: {self.default})"


@dataclass(frozen=True)
class TokenQuery(Token, Parameter):
    """A token of the picture; None stands for the token that ``default_help`` names."""

    name: str
    title: str
    help: str
    default: None = None
    default_help: str = "cls, or patches where there is none"
    kind: ClassVar[str] = "token"
    converter: ClassVar[str] = "query"

    @property
    def legal(self) -> str:
        return f"[row, column] of a patch, {PATCHES!r} for the mean of all, the name of a prefix token, or a number"

    def canonical(self, value: object, bounds: Bounds) -> Any:
        assert bounds.layout is not None
        return canonical_token(self.title, value, bounds.layout)

    def default_for(self, bounds: Bounds, target: object = None) -> Any:
        # Likeness to a patch starts from all patches.
        return PATCHES if isinstance(target, Mapping) and "patch" in target else bounds.default_query

    @property
    def option(self) -> str:
        tokens = "cls, patches (their mean), 'register 1', ROW,COLUMN, or a token's number"
        return f"{self.help}: {tokens} (default: {self.default_help})"


@dataclass(frozen=True)
class ClassTarget(Parameter):
    """What a map is about: a class by label or number, or another target; None stands for the most probable class."""

    name: str
    title: str
    help: str
    default: None = None
    kind: ClassVar[str] = "class"

    @property
    def legal(self) -> str:
        return (
            'a label, the number of a class from 0, {"class": ..., "against": ...} for one class against another, '
            '{"class": ..., "margin": true} for a class against the best of all others, {"like": ...} for an '
            'uploaded picture that this one is like, {"like": ..., "patch": [row, column]} for a patch of it, '
            '{"patch": [row, column]} for a patch of this picture, or {"text": ...} for a model that reads texts'
        )

    def read(self, value: object, bounds: Bounds, field: str) -> Any:
        return target_of(field, value, bounds)

    def kept(self, value: object, bounds: Bounds, field: str) -> Any:
        return target_json(self.read(value, bounds, field))

    def canonical(self, value: object, bounds: Bounds) -> Any:
        return canonical_target(self.title, value, bounds)

    def python(self, value: Any, labels: Sequence[str]) -> str:
        """As above; in the lines before, ``text`` and ``other`` are the target's text and the analysis it is like."""
        if not isinstance(value, Mapping):
            # The library does not find a class by a label that several have.
            return python_of(labels[value] if labels.count(labels[value]) == 1 else value)
        if "text" in value:
            return "text"
        if "like" in value or "patch" in value:
            patch = f", patch={value['patch']}" if "patch" in value else ""
            return f"vitviz.likeness({'other' if 'like' in value else 'analysis'}{patch})"
        first = None if value.get("class") is None else self.python(value["class"], labels)
        if "margin" in value:
            return f"vitviz.margin({first or ''})"
        return f"vitviz.contrast({first}, {self.python(value['against'], labels)})"

    @property
    def option(self) -> str:
        return f"{self.help}: a name or a number (default: the most probable)"


def integer_of(text: str) -> int:
    """The whole number in a text.

    Raises:
        MethodError: there is another text.
    """
    if INTEGER.fullmatch(text) is None:
        raise MethodError("expected a whole number")
    return int(text)


def decimal_of(text: str) -> float:
    """The number in a text, as :func:`integer_of`."""
    if DECIMAL.fullmatch(text) is None:
        raise MethodError("expected a number")
    return float(text)


def pair_of(text: str) -> tuple[int, int]:
    """The two whole numbers in a text, such as ``"4,5"``, as :func:`integer_of`."""
    match = PAIR.fullmatch(text)
    if match is None:
        raise MethodError("expected two whole numbers")
    return int(match[1]), int(match[2])


def text_of(value: Any) -> str:
    """A value in a link."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return ",".join(map(text_of, value))
    # str of a float is the shortest text that reads back as the same number.
    return str(value).removesuffix(".0") if isinstance(value, float) else str(value)


def python_of(value: Any) -> str:
    """A value in Python; in strings, invisible characters and those that reorder the line are escaped."""
    if not isinstance(value, str):
        return repr(value)
    quoted = json.dumps(value, ensure_ascii=False)
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in quoted)
