"""The kinds of parameters of methods and probes.

A kind is one class: it checks a value, describes itself to the page, the API and the command, and is written into a
link and into Python. A value is an argument of the library, or JSON that stands for one: of a program, a page or a
link.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vitviz.attention.layout import PATCHES
from vitviz.attention.softmax import HEAD_FUSIONS
from vitviz.attribution.json_values import fields, number, number_range, word
from vitviz.attribution.requests import Bounds, canonical_target, canonical_token, target_json, target_of, token_of
from vitviz.errors.arguments import boolean
from vitviz.errors.kinds import MethodError
from vitviz.errors.messages import choices

# Numbers and booleans of JSON.
PLAIN = re.compile(r"-?(0|[1-9]\d{0,15})(\.\d{1,20})?(e[+-]?\d{1,3})?|true|false", re.ASCII)
PAIR = re.compile(r"(\d{1,6})[.,](\d{1,6})", re.ASCII)


class Kind(ABC):
    """What is legal in one place, and how it is written.

    Attributes:
        control: word for the kind, by which the page chooses its control, and which programs get.
        converter: the function of :mod:`vitviz.cli.grammar` that reads a command's option, by name; empty for text.
        values_help: what the help of a command's option says about values, with fields for the kind and the default.
    """

    control = ""
    converter = ""
    values_help = " (default: {default})"

    @abstractmethod
    def read(self, value: object, bounds: Bounds, field: str) -> Any:
        """The argument of the library for JSON of any kind but null; ``field`` names the value in messages.

        Raises:
            MethodError: it is not legal.
        """

    def keep(self, value: object, bounds: Bounds, field: str) -> Any:
        """The value, checked as by :meth:`read`, as the state of a page keeps it."""
        return self.read(value, bounds, field)

    def canonical(self, value: object, bounds: Bounds, field: str) -> Any:
        """The value as every page keeps it that means the same, such as a layer counted from 0.

        Raises:
            MethodError: the model or the picture has no such value.
        """
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

    def python(self, value: Any, labels: Sequence[str]) -> str:
        """A canonical value in Python; the labels are those of the model's classes."""
        return python_of(value)

    @property
    def legal(self) -> str:
        """The legal values in words, for any model."""
        return ""

    def facts(self) -> dict[str, Any]:
        """What the control of this kind needs."""
        return {}


@dataclass(frozen=True)
class Parameter:
    """A parameter of a method or a probe.

    Args:
        name: of the function's argument.
        title: label of the control.
        help: one line on its effect.
        kind: of its values.
        default: its value; None stands for a value that depends on the model.
    """

    name: str
    title: str
    help: str
    kind: Kind
    default: Any = None

    def default_for(self, bounds: Bounds, target: object = None) -> Any:
        """The default as :meth:`Kind.canonical` gives values, of a map about a target."""
        if isinstance(self.kind, Token):
            # Likeness to a patch starts from all patches.
            return PATCHES if isinstance(target, Mapping) and "patch" in target else bounds.default_query
        return None if self.default is None else self.kind.canonical(self.default, bounds, self.title)

    def facts(self) -> dict[str, Any]:
        """What a control of the page and a program need."""
        own = {name: getattr(self, name) for name in ("name", "title", "help", "default")}
        return {**own, "kind": self.kind.control, "legal": self.kind.legal, **self.kind.facts()}

    @property
    def option(self) -> str:
        """The help of the command's option."""
        default = "none" if self.default is None else self.default
        return self.help + self.kind.values_help.format(kind=self.kind, default=default)


@dataclass(frozen=True)
class Choice(Kind):
    """One of some words.

    Args:
        words: the legal ones.
        titles: of the words on the page; the words themselves by default.
        none: the title of None, if this is legal.
    """

    words: Collection[str]
    titles: Sequence[str] = ()
    none: str = ""
    control = "choice"

    @property
    def options(self) -> list[tuple[str, str | None]]:
        """Title and value of each."""
        return [(self.none, None)] * bool(self.none) + list(zip(self.titles or self.words, self.words, strict=True))

    @property
    def legal(self) -> str:
        return choices(self.words)

    def read(self, value: object, bounds: Bounds, field: str) -> str:
        return word(field, value, self.words)

    def facts(self) -> dict[str, Any]:
        options = [{"title": title, "value": value} for title, value in self.options]
        return {"options": options, "choices": list(self.words)}


class Plain(Kind):
    """A kind whose values are numbers or booleans, which a link has as JSON; it may have words, too."""

    def parse(self, text: str) -> Any:
        return plain_of(text)


@dataclass(frozen=True)
class Number(Plain):
    """A number between two bounds, both included; whole if the step is."""

    minimum: float
    maximum: float
    step: float = 1
    control = "number"
    values_help = " ({kind.minimum:g} to {kind.maximum:g}, default: {default:g})"

    @property
    def whole(self) -> bool:
        """Whether only whole numbers are legal."""
        return isinstance(self.step, int)

    @property
    def converter(self) -> str:  # type: ignore[override]
        return "int" if self.whole else "float"

    @property
    def legal(self) -> str:
        return number_range(self.minimum, self.maximum, self.whole)

    def read(self, value: object, bounds: Bounds, field: str) -> float:
        return number(field, value, self.minimum, self.maximum, whole=self.whole)

    def facts(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("minimum", "maximum", "step", "whole")}


class Switch(Plain):
    """True or false."""

    control = "switch"
    values_help = ""
    legal = "true or false"

    def read(self, value: object, bounds: Bounds, field: str) -> bool:
        return boolean(field, value, self.legal)


@dataclass(frozen=True)
class LayerNumber(Plain):
    """A layer of the model, counted from 0, or from the end as ``-1``.

    ``on_page`` says whether the page has a control for it.
    """

    on_page: bool = True
    control = "layer"
    converter = "int"
    values_help = "; from 0, or from the end as -1 (default: {default})"
    legal = "a layer, from 0 (nearest to the image), or from the end as -1"

    def read(self, value: object, bounds: Bounds, field: str) -> float:
        return number(field, value, -bounds.layers, bounds.layers - 1, whole=True)

    def canonical(self, value: object, bounds: Bounds, field: str) -> float:
        return self.read(value, bounds, field) % bounds.layers

    def facts(self) -> dict[str, Any]:
        return {"on_page": self.on_page}


class HeadNumber(Plain):
    """A head of the model, counted from 0 or from the end as ``-1``, or a fusion of all its heads."""

    control = "head"
    converter = "head"
    values_help = f" (counted from 0, or {', '.join(HEAD_FUSIONS)}; default: {{default}})"
    legal = f"a head, from 0 or from the end as -1, or {choices(HEAD_FUSIONS)} of all heads"

    def read(self, value: object, bounds: Bounds, field: str) -> float | str:
        if isinstance(value, str):
            return word(field, value, HEAD_FUSIONS)
        return number(field, value, -bounds.heads, bounds.heads - 1, whole=True)

    def canonical(self, value: object, bounds: Bounds, field: str) -> float | str:
        head = self.read(value, bounds, field)
        return head if isinstance(head, str) else head % bounds.heads


@dataclass(frozen=True)
class Token(Kind):
    """A token of the picture; the command's help says by ``default`` what a missing one stands for."""

    default: str = "cls, or patches where there is none"
    control = "token"
    converter = "query"
    values_help = ": cls, patches (their mean), 'register 1', ROW,COLUMN, or a token's number (default: {kind.default})"
    legal = f"[row, column] of a patch, {PATCHES!r} for the mean of all, the name of a prefix token, or a number"

    def read(self, value: object, bounds: Bounds, field: str) -> Any:
        return token_of(field, value, bounds.layout)

    def canonical(self, value: object, bounds: Bounds, field: str) -> Any:
        assert bounds.layout is not None
        return canonical_token(field, value, bounds.layout)

    def parse(self, text: str) -> Any:
        return pair_of(text) if PAIR.fullmatch(text) else text


class ClassTarget(Kind):
    """What a map is about: a class by label or number, or another target; None stands for the most probable class."""

    control = "class"
    values_help = ": a name or a number (default: the most probable)"
    legal = (
        'a label, the number of a class from 0, {"class": ..., "against": ...} for one class against another, '
        '{"class": ..., "margin": true} for a class against the best of all others, {"like": ...} for an '
        'uploaded picture that this one is like, {"like": ..., "patch": [row, column]} for a patch of it, '
        '{"patch": [row, column]} for a patch of this picture, or {"text": ...} for a model that reads texts'
    )

    def read(self, value: object, bounds: Bounds, field: str) -> Any:
        return target_of(field, value, bounds)

    def keep(self, value: object, bounds: Bounds, field: str) -> Any:
        return target_json(self.read(value, bounds, field))

    def canonical(self, value: object, bounds: Bounds, field: str) -> Any:
        return canonical_target(field, value, bounds)

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


def values_of(
    parameters: Sequence[Parameter], value: object, bounds: Bounds, field: str = "parameters", *, as_state: bool = False
) -> dict[str, Any]:
    """The parameters in an object that are not null.

    Args:
        parameters: of a method or a probe.
        value: an object with a field for each, or null.
        bounds: of the model and the picture.
        field: the name of the object in messages.
        as_state: as a state keeps them, not as arguments of the library.

    Raises:
        MethodError: a parameter is unknown or not legal.
    """
    values = {} if value is None else fields(field, value, [parameter.name for parameter in parameters])
    return {
        parameter.name: (parameter.kind.keep if as_state else parameter.kind.read)(
            values[parameter.name], bounds, f"{field}.{parameter.name}"
        )
        for parameter in parameters
        if values.get(parameter.name) is not None
    }


def plain_of(text: str) -> Any:
    """The number or the boolean that a text is; any other text as it is, for the check of what is legal to name."""
    return json.loads(text) if PLAIN.fullmatch(text) else text


def pair_of(text: str) -> tuple[int, int]:
    """The two whole numbers in a text, such as ``"4,5"``.

    Raises:
        MethodError: there is another text.
    """
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
