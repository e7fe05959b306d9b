"""Tokens and targets of maps as programs, links and the page state them: JSON of any kind, checked here."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from vitviz.attention.layout import PATCHES, Query, TokenLayout
from vitviz.attribution.json_values import encodable, fields, number, word
from vitviz.errors.arguments import boolean
from vitviz.errors.kinds import MethodError
from vitviz.errors.messages import choices, quote
from vitviz.models.targets import MAX_TEXT_CHARS, NO_CLASSIFIER, ClassDifference, class_of

# ImageNet's labels list their synonyms.
MAX_LABEL_CHARS = 500
# No model or picture has more of anything.
MAX_INDEX = 1_000_000
TOKEN_NAME = re.compile(r"[a-z]{1,20}( \d{1,4})?", re.ASCII)


def _any_picture(field: str, value: object) -> Any:
    return value


@dataclass(frozen=True)
class Bounds:
    """What a model and a picture have.

    Args:
        layers, heads, classes: their numbers in the model; larger than any model's by default.
        layout: of the picture's tokens; None allows any token.
        default_query: the token that a missing one stands for; None for a learned query, which is no token.
        labels: of the model's classes.
        reads_text: whether a text can be a target.
        model: the model's name in messages.
        other_picture: returns the other picture that a target names, or refuses it; its arguments are the field's name
            and value.
    """

    layers: int = MAX_INDEX
    heads: int = MAX_INDEX
    classes: int = MAX_INDEX
    layout: TokenLayout | None = None
    default_query: Query | None = None
    labels: Sequence[str] = ()
    reads_text: bool = True
    model: str = "this model"
    other_picture: Callable[[str, object], Any] = _any_picture


@dataclass(frozen=True)
class TextPrompt:
    """A text whose tower is not open yet, so that it cannot be a target."""

    text: str


@dataclass(frozen=True)
class LikenessRequest:
    """Likeness to a picture, or to a patch of one, before the picture is opened.

    Args:
        picture: as :attr:`Bounds.other_picture` returns it; None for the picture of the map itself.
        patch: row and column; None for the whole picture.
    """

    picture: Any
    patch: tuple[int, int] | None = None


TargetRequest = int | str | ClassDifference | TextPrompt | LikenessRequest
"""The target of a map: a class by label or number, a class against others, a text, or likeness."""
# The fields of each kind of target object.
_TEXT, _CLASSES, _LIKENESS = ("text",), ("class", "against", "margin"), ("like", "patch")


def token_of(name: str, value: object, layout: TokenLayout | None) -> Query:
    """A token of a picture; without a layout any legal one.

    Raises:
        MethodError: the picture has no such token.
    """
    if isinstance(value, str):
        if layout is None and TOKEN_NAME.fullmatch(value):
            return value
        return word(name, value, (*(layout.prefix if layout else ("cls", "register 1")), PATCHES))
    rows, columns, count = (layout.grid_height, layout.grid_width, layout.token_count) if layout else [MAX_INDEX] * 3
    if isinstance(value, list | tuple):
        ranges = zip(value, (0, 0), (rows - 1, columns - 1), strict=True)
        try:
            row, column = (number(name, *each, whole=True) for each in ranges)
        except (MethodError, ValueError):
            legal = f"[row, column] of a patch, a square of the picture, from [0, 0] to [{rows - 1}, {columns - 1}]"
            raise MethodError(f"{name} = {quote(list(value))}: expected {legal}") from None
        return int(row), int(column)
    return int(number(name, value, 0, count - 1, whole=True))


def canonical_token(name: str, value: object, layout: TokenLayout) -> Query:
    """The name of a prefix token, or row and column of a patch.

    Raises:
        MethodError: the picture has no such token.
    """
    token = token_of(name, value, layout)
    if isinstance(token, int):
        return layout.prefix[token] if token < layout.prefix_count else layout.cell(token)
    return token


def target_of(name: str, value: object, bounds: Bounds) -> TargetRequest:
    """A target.

    Raises:
        MethodError: it is not legal.
    """
    if not isinstance(value, dict):
        return _class(name, value, bounds.classes)
    entries = fields(name, value, _TEXT + _CLASSES + _LIKENESS).items()
    target = {field: item for field, item in entries if item is not None}
    kind = next((kind for kind in (_TEXT, _CLASSES, _LIKENESS) if target and set(target) <= set(kind)), None)
    if kind == _TEXT:
        return _text(name, target["text"])
    if kind == _LIKENESS:
        return _likeness(name, target, bounds)
    if kind == _CLASSES and {"class"} != set(target):
        return _difference(name, target, bounds.classes)
    description = f"an object with {choices(target)}" if target else "an empty object"
    expected = (
        '{"text": ...}, {"like": ..., "patch": ...}, {"class": ..., "against": ...} or {"class": ..., "margin": true}'
    )
    raise MethodError(f"{name}: {description}; expected {expected}")


def canonical_target(title: str, value: Any, bounds: Bounds) -> int | dict[str, Any]:
    """A target as JSON of a state, its classes by number.

    Raises:
        MethodError: the model has no such class, or the target is not legal.
    """
    if not isinstance(value, Mapping):
        return _class_number(title, value, bounds)
    if "text" in value and not bounds.reads_text:
        raise MethodError(f"{bounds.model} reads no text")
    classes = {
        name: _class_number(title, each, bounds) if name in ("class", "against") else each
        for name, each in value.items()
    }
    # Its classes are numbers now.
    return cast("int | dict[str, Any]", target_json(target_of("parameters.target", classes, bounds)))


def target_json(target: TargetRequest) -> int | str | dict[str, Any]:
    """A target as JSON of a state; :func:`target_of` reads it."""
    match target:
        case TextPrompt(text):
            return {"text": text}
        case LikenessRequest(picture, patch):
            return {name: item for name, item in (("like", picture), ("patch", patch)) if item is not None}
        case ClassDifference(first, second):
            comparison = {"margin": True} if second is None else {"against": second}
            return ({} if first is None else {"class": first}) | comparison
    return target


def _text(name: str, text: object) -> TextPrompt:
    if not isinstance(text, str) or not 0 < len(text.strip()) <= MAX_TEXT_CHARS:
        raise MethodError(f"{name}.text = {quote(text)}: expected 1 to {MAX_TEXT_CHARS:,} characters")
    return TextPrompt(encodable(name, text.strip()))


def _likeness(name: str, target: Mapping[str, Any], bounds: Bounds) -> LikenessRequest:
    picture = target.get("like")
    # The layout of another picture is not known yet.
    layout = bounds.layout if picture is None else None
    patch = _patch(f"{name}.patch", target["patch"], layout) if "patch" in target else None
    return LikenessRequest(None if picture is None else bounds.other_picture(f"{name}.like", picture), patch)


def _patch(name: str, value: object, layout: TokenLayout | None) -> tuple[int, int]:
    token = token_of(name, value, layout) if isinstance(value, list | tuple) else None
    if not isinstance(token, tuple):
        raise MethodError(f"{name} = {quote(value)}: expected [row, column] of a patch")
    return token


def _difference(name: str, target: Mapping[str, Any], classes: int) -> ClassDifference:
    first, second = (
        None if target.get(field) is None else _class(f"{name}.{field}", target[field], classes)
        for field in _CLASSES[:2]
    )
    if not classes:
        raise MethodError(f"{name}: {NO_CLASSIFIER}")
    has_margin = boolean(f"{name}.margin", target.get("margin", False), "true or false")
    if has_margin == (second is not None):
        raise MethodError(f"{name}: expected either against, another class, or margin, true for the best of all others")
    if first is not None and first == second:
        raise MethodError(f"{name}: class and against are the same; expected two classes")
    return ClassDifference(first, second)


def _class(name: str, value: object, classes: int) -> int | str:
    if not classes:
        raise MethodError(f"{name} = {quote(value)}: {NO_CLASSIFIER}")
    if isinstance(value, str):
        if not 0 < len(value) <= MAX_LABEL_CHARS:
            raise MethodError(f"{name} = {quote(value)}: expected a label of the model")
        return encodable(name, value)
    return int(number(name, value, 0, classes - 1, whole=True))


def _class_number(title: str, value: object, bounds: Bounds) -> int:
    if not bounds.labels:
        raise MethodError(f"{bounds.model} has no class {quote(value)}")
    if isinstance(value, str):
        return class_of(value, bounds.labels, "class")
    return int(number(title, value, 0, len(bounds.labels) - 1, whole=True))
