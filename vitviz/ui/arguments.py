"""Checks of JSON from programs, which may be of any type and size, and its values as arguments of the library."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vitviz.attention.layout import PATCHES, Query, TokenLayout
from vitviz.attention.softmax import HEAD_FUSIONS
from vitviz.attribution import METHODS, Method
from vitviz.attribution.parameters import Choice, ClassTarget, HeadNumber, LayerNumber, Number, Parameter, TokenQuery
from vitviz.errors import arguments
from vitviz.errors.kinds import MethodError
from vitviz.errors.messages import choices, did_you_mean, quote
from vitviz.models.targets import NO_CLASSIFIER, ClassDifference
from vitviz.ui.pictures import PICTURE, Upload, is_picture, upload_of
from vitviz.visualization.scales import SCALES, ScaleName
from vitviz.weights import Model
from vitviz.weights.text_tower import MAX_TEXT_CHARS, TextPrompt

# ImageNet's labels list their synonyms.
MAX_LABEL_CHARS = 500
# No model or picture has more of anything.
MAX_INDEX = 1_000_000
TOKEN_NAME = re.compile(r"[a-z]{1,20}( \d{1,4})?", re.ASCII)


def view_index(request: Mapping[str, Any], count: int) -> int:
    """The field ``index`` of a request, of one of ``count`` views.

    Raises:
        MethodError: it is no index of a view.
    """
    return int(number("index", request.get("index"), 0, count - 1, whole=True))


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
    raise MethodError(f"{field} = {quote(value)}: expected {_number_range(minimum, maximum, whole)}")


def switch(field: str, value: object) -> bool:
    """A boolean.

    Raises:
        MethodError: the value is something else.
    """
    if not isinstance(value, bool):
        raise MethodError(f"{field} = {quote(value)}: expected true or false")
    return value


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


def scale_of(field: str, value: object) -> ScaleName | None:
    """The name of a scale; None lets the values of the map choose one.

    Raises:
        MethodError: there is no scale of this name.
    """
    return None if value is None else word(field, value, SCALES)


def method_of(value: object, field: str = "method") -> Method:
    """The method of a name.

    Raises:
        MethodError: there is no method of this name.
    """
    return METHODS[word(field, value, METHODS)]


def parameters_of(
    method: Method, parameters: object, model: Model, layout: TokenLayout, field: str = "parameters"
) -> dict[str, Any]:
    """All arguments of a method; a missing or null one gets its default.

    Args:
        method: to which they belong.
        parameters: an object with a field for each, or null.
        model, layout: of the analysis.
        field: the name of the object in messages.

    Raises:
        MethodError: a parameter is unknown or not legal, or the model cannot serve the method.
    """
    # A missing target is refused where it is looked up.
    refusal = method.refusal(model.network.config, has_target=True)
    if refusal is not None:
        raise MethodError(f"{method.name}: {refusal}")
    defaults = {parameter.name: parameter.default for parameter in method.parameters}
    return defaults | values_of(method.parameters, parameters, Bounds.of(model, layout), field)


def values_of(
    parameters: Sequence[Parameter], value: object, bounds: Bounds, field: str = "parameters"
) -> dict[str, Any]:
    """The parameters in an object that are not null.

    Args:
        parameters: of a method or a probe.
        value: an object with a field for each, or null.
        bounds: of the model and the picture.
        field: the name of the object in messages.

    Raises:
        MethodError: a parameter is unknown or not legal.
    """
    values = {} if value is None else fields(field, value, [parameter.name for parameter in parameters])
    return {
        parameter.name: parameter_of(parameter, values[parameter.name], bounds, field)
        for parameter in parameters
        if values.get(parameter.name) is not None
    }


@dataclass(frozen=True)
class Bounds:
    """The numbers of layers, heads and classes of a model, and the token layout of a picture.

    Args:
        layers, heads, classes: of the model; larger than any model's by default.
        layout: None allows any token.
    """

    layers: int = MAX_INDEX
    heads: int = MAX_INDEX
    classes: int = MAX_INDEX
    layout: TokenLayout | None = None

    @classmethod
    def of(cls, model: Model, layout: TokenLayout) -> Bounds:
        config = model.network.config
        return cls(config.depth, config.heads, config.classes, layout)


def parameter_of(parameter: Parameter, value: object, bounds: Bounds, field: str = "parameters") -> Any:
    """One argument of a method.

    Args:
        parameter: of the method.
        value: JSON of any kind but null.
        bounds: of the model and the picture.
        field: the name in messages of the object around it.

    Raises:
        MethodError: it is not legal.
    """
    name = f"{field}.{parameter.name}"
    match parameter:
        case Choice():
            return word(name, value, _options(parameter))
        case Number():
            return number(name, value, parameter.minimum, parameter.maximum, whole=parameter.whole)
        case LayerNumber():
            return number(name, value, -bounds.layers, bounds.layers - 1, whole=True)
        case HeadNumber() if isinstance(value, str):
            return word(name, value, HEAD_FUSIONS)
        case HeadNumber():
            return number(name, value, -bounds.heads, bounds.heads - 1, whole=True)
        case TokenQuery():
            return token_of(name, value, bounds.layout)
        case ClassTarget():
            return _target(name, value, bounds)


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
        if len(value) != 2:
            raise MethodError(f"{name} = {quote(value)}: expected [row, column] of a patch")
        row = number(f"{name}[0]", value[0], 0, rows - 1, whole=True)
        return int(row), int(number(f"{name}[1]", value[1], 0, columns - 1, whole=True))
    return int(number(name, value, 0, count - 1, whole=True))


@dataclass(frozen=True)
class LikenessRequest:
    """Likeness to a picture, or to a patch of one, before the picture is opened.

    Args:
        picture: ``example:NAME`` or ``picture:ID``, or an upload; None for the picture of the map itself.
        patch: row and column; None for the whole picture.
    """

    picture: str | Upload | None
    patch: tuple[int, int] | None = None


TargetRequest = int | str | ClassDifference | TextPrompt | LikenessRequest
"""The target of a map: a class by label or number, a class against others, a text, or likeness."""
# The fields of each kind of target object.
_TEXT, _CLASSES, _LIKENESS = ("text",), ("class", "against", "margin"), ("like", "patch")


def _target(name: str, value: object, bounds: Bounds) -> TargetRequest:
    if not isinstance(value, dict):
        return _class(name, value, bounds.classes)
    entries = fields(name, value, _TEXT + _CLASSES + _LIKENESS).items()
    target = {field: item for field, item in entries if item is not None}
    kind = next((kind for kind in (_TEXT, _CLASSES, _LIKENESS) if target and set(target) <= set(kind)), None)
    if kind == _TEXT:
        return _text(name, target["text"])
    if kind == _LIKENESS:
        return _likeness(name, target, bounds.layout)
    if kind == _CLASSES and {"class"} != set(target):
        return _difference(name, target, bounds.classes)
    description = f"an object with {choices(target)}" if target else "an empty object"
    expected = (
        '{"text": ...}, {"like": ..., "patch": ...}, {"class": ..., "against": ...} or {"class": ..., "margin": true}'
    )
    raise MethodError(f"{name}: {description}; expected {expected}")


def _text(name: str, text: object) -> TextPrompt:
    if not isinstance(text, str) or not 0 < len(text.strip()) <= MAX_TEXT_CHARS:
        raise MethodError(f"{name}.text = {quote(text)}: expected 1 to {MAX_TEXT_CHARS:,} characters")
    return TextPrompt(_encodable(name, text.strip()))


def _likeness(name: str, target: Mapping[str, Any], layout: TokenLayout | None) -> LikenessRequest:
    picture = target.get("like")
    # The layout of another picture is not known yet.
    patch = _patch(f"{name}.patch", target["patch"], layout if picture is None else None) if "patch" in target else None
    if isinstance(picture, dict):
        return LikenessRequest(upload_of(picture, f"{name}.like"), patch)
    if picture is not None and not is_picture(picture):
        raise MethodError(f"{name}.like = {quote(picture)}: {PICTURE}, or a file that was uploaded here")
    return LikenessRequest(picture, patch)


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
    has_margin = switch(f"{name}.margin", target.get("margin", False))
    if has_margin == (second is not None):
        raise MethodError(f"{name}: expected either against, another class, or margin, true for the best of all others")
    if first is not None and first == second:
        raise MethodError(f"{name}: class and against are the same; expected two classes")
    return ClassDifference(first, second)


def target_json(target: TargetRequest) -> int | str | dict[str, Any]:
    """A target as JSON of a state.

    Raises:
        MethodError: it is likeness to an upload, for which a state has an id.
    """
    match target:
        case TextPrompt(text):
            return {"text": text}
        case LikenessRequest(picture, patch):
            if isinstance(picture, Upload):
                raise MethodError(f"target.like = {quote(picture.name)}: {PICTURE}")
            return {name: item for name, item in (("like", picture), ("patch", patch)) if item is not None}
        case ClassDifference(first, second):
            comparison = {"margin": True} if second is None else {"against": second}
            return ({} if first is None else {"class": first}) | comparison
    return target


def _class(name: str, value: object, classes: int) -> int | str:
    if not classes:
        raise MethodError(f"{name} = {quote(value)}: {NO_CLASSIFIER}")
    if isinstance(value, str):
        if not 0 < len(value) <= MAX_LABEL_CHARS:
            raise MethodError(f"{name} = {quote(value)}: expected a label of the model")
        return _encodable(name, value)
    return int(number(name, value, 0, classes - 1, whole=True))


def _encodable(name: str, text: str) -> str:
    """The text, if UTF-8 can encode it: JSON may hold halves of surrogate pairs."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise MethodError(f"{name} = {quote(text)}: expected whole characters") from None
    return text


def legal(parameter: Parameter) -> str:
    """The legal values of a parameter in words, for any model."""
    match parameter:
        case Choice():
            return choices(_options(parameter))
        case Number():
            return _number_range(parameter.minimum, parameter.maximum, parameter.whole)
        case LayerNumber():
            return "a layer, from 0 (nearest to the image), or from the end as -1"
        case HeadNumber():
            return f"a head, from 0 or from the end as -1, or {choices(HEAD_FUSIONS)} of all heads"
        case TokenQuery():
            return f"[row, column] of a patch, {PATCHES!r} for the mean of all, the name of a prefix token, or a number"
        case ClassTarget():
            return (
                'a label, the number of a class from 0, {"class": ..., "against": ...} for one class against another, '
                '{"class": ..., "margin": true} for a class against the best of all others, {"like": ...} for an '
                'uploaded picture that this one is like, {"like": ..., "patch": [row, column]} for a patch of it, '
                '{"patch": [row, column]} for a patch of this picture, or {"text": ...} for a model that reads texts'
            )


def _number_range(minimum: float, maximum: float, whole: bool) -> str:
    return f"a {'whole ' * whole}number from {minimum:g} to {maximum:g}"


def _options(parameter: Choice) -> list[str]:
    """The values of a choice that are not null."""
    return [value for _, value in parameter.options if value is not None]
