"""What a program says in JSON, as arguments of the library: of any type and size until it is checked."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from gradio.data_classes import FileData
from gradio.utils import get_upload_folder, is_in_or_equal

from vitviz.attention.layout import PATCHES, Query, TokenLayout
from vitviz.attention.softmax import HEAD_FUSIONS
from vitviz.attribution import METHODS, Method
from vitviz.attribution.methods import Choice, ClassTarget, HeadNumber, LayerNumber, Number, Parameter, TokenQuery
from vitviz.errors.kinds import ImageError, MethodError
from vitviz.errors.messages import choices, did_you_mean, plain, quote
from vitviz.models.targets import NO_CLASSIFIER, ClassDifference
from vitviz.ui.pictures import PICTURE, Upload, is_picture
from vitviz.visualization.scales import SCALES
from vitviz.weights import Model
from vitviz.weights.text_tower import MAX_TEXT_CHARS, TextPrompt

# Of a label, in characters; those of ImageNet list their synonyms.
LONGEST_LABEL = 500
LONGEST_NAME = 120
# More than any model or picture has of anything.
MAX_INDEX = 1_000_000
TOKEN_NAME = re.compile(r"[a-z]{1,20}( \d{1,4})?", re.ASCII)
FILE = "expected a file that was uploaded here; gradio_client uploads with handle_file(PATH)"
# Stands before the path of an upload in its address, as Gradio's tool for uploads names it.
ADDRESS, SCHEMES = "/gradio_api/file=", ("http://", "https://")
# Of a path; Linux takes no longer one.
LONGEST_PATH = 4096


def upload_of(value: object, field: str = "image") -> Upload:
    """An uploaded file, by what Gradio's clients say of one.

    Raises:
        ImageError: it is none, or it is not kept any more.
    """
    if not isinstance(value, dict) or not isinstance(value.get("path"), str):
        raise ImageError(f"{field} = {quote(value)}: {FILE}")
    path = value["path"]
    if len(path) > LONGEST_PATH:
        raise ImageError(f"{field} = {quote(path)}: a path of {len(path):,} characters; {FILE}")
    server, mark, rest = path.rpartition(ADDRESS)
    if mark and server.startswith(SCHEMES):
        path = unquote(rest)
    try:
        FileData.model_validate(value)
        is_kept = is_in_or_equal(path, get_upload_folder()) and Path(path).is_file()
    # A path that no system takes, or a description of the file that cannot be one.
    except (ValueError, OSError):
        is_kept = False
    if not is_kept:
        raise ImageError(f"{field} = {quote(path)}: not uploaded here, or not kept any more; {FILE}")
    return Upload(Path(path), plain(Path(value.get("orig_name") or path).name[-LONGEST_NAME:]))


def word(field: str, value: object, legal: Collection[str]) -> str:
    """One of a few words.

    Raises:
        MethodError: it is none of them.
    """
    if not isinstance(value, str) or value not in legal:
        raise MethodError(f"{field} = {quote(value)}: expected {choices(legal)}{did_you_mean(value, legal)}")
    return value


def number(field: str, value: object, least: float, most: float, *, whole: bool = False) -> float:
    """A number between two bounds, both included.

    Raises:
        MethodError: it is none.
    """
    # Compared as it is: a whole number of JSON may be larger than any that Python can convert; NaN is in no range.
    if isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most:
        if not whole:
            # Not minus zero.
            return float(value) + 0.0
        if value == int(value):
            return int(value)
    raise MethodError(f"{field} = {quote(value)}: expected {_numbers(least, most, whole)}")


def switch(field: str, value: object) -> bool:
    """True or false.

    Raises:
        MethodError: it is neither.
    """
    if not isinstance(value, bool):
        raise MethodError(f"{field} = {quote(value)}: expected true or false")
    return value


def fields(field: str, value: object, legal: Collection[str]) -> dict[str, Any]:
    """An object without other fields than these.

    Raises:
        MethodError: it is none, or has others.
    """
    if not isinstance(value, dict):
        raise MethodError(f"{field} = {quote(value)}: expected an object with {choices(legal)}")
    for name in value:
        if name not in legal:
            raise MethodError(f"{field} has no {quote(name)}: expected {choices(legal)}{did_you_mean(name, legal)}")
    return value


def scale_of(field: str, value: object) -> str | None:
    """The name of a scale; None for the one that the values of the map ask for.

    Raises:
        MethodError: there is none of this name.
    """
    return None if value is None else word(field, value, SCALES)


def method_of(value: object, field: str = "method") -> Method:
    """The method of a name.

    Raises:
        MethodError: there is none.
    """
    return METHODS[word(field, value, METHODS)]


def parameters_of(
    method: Method, parameters: object, model: Model, layout: TokenLayout, field: str = "parameters"
) -> dict[str, Any]:
    """All arguments of a method; a missing one, or null, is its default.

    Args:
        method: whose parameters they are.
        parameters: an object with a field for each, or null.
        model, layout: of the analysis.
        field: what messages call it.

    Raises:
        MethodError: there is no such parameter, one is not legal, or the model cannot serve the method.
    """
    # That a target is missing is said where it is looked up.
    refusal = method.refusal(model.network.config, has_target=True)
    if refusal is not None:
        raise MethodError(f"{method.name}: {refusal}")
    defaults = {parameter.name: parameter.default for parameter in method.parameters}
    return defaults | values_of(method.parameters, parameters, Bounds.of(model, layout), field)


def values_of(
    parameters: Sequence[Parameter], value: object, bounds: Bounds, field: str = "parameters"
) -> dict[str, Any]:
    """The parameters that an object gives, or null; those that are null are left out.

    Args:
        parameters: of a method or a probe.
        value: an object with a field for each.
        bounds: what there is.
        field: what messages call it.

    Raises:
        MethodError: there is no such parameter, or one is not legal.
    """
    given = {} if value is None else fields(field, value, [each.name for each in parameters])
    found = [(each, given.get(each.name)) for each in parameters]
    return {each.name: parameter_of(each, one, bounds, field) for each, one in found if one is not None}


@dataclass(frozen=True)
class Bounds:
    """What arguments there are for a model and the tokens of a picture.

    Args:
        layers, heads, classes: of the model.
        layout: of the tokens; None for any.
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
    """One argument of a method, which is not null.

    Args:
        parameter: of the method.
        value: JSON of any kind.
        bounds: what there is.
        field: what messages call the object that it stands in.

    Raises:
        MethodError: it is not legal.
    """
    name = f"{field}.{parameter.name}"
    match parameter:
        case Choice():
            return word(name, value, _values(parameter))
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
    """A token of a picture, or any where its layout is not known.

    Raises:
        MethodError: there is none.
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
    """Likeness to a picture, or to a patch of one, before that is opened.

    Args:
        picture: ``example:NAME`` or ``picture:ID``, or an upload; None for the picture itself that is asked about.
        patch: row and column; None for the whole picture.
    """

    picture: str | Upload | None
    patch: tuple[int, int] | None = None


TargetRequest = int | str | ClassDifference | TextPrompt | LikenessRequest
"""What a map is to be about: a class by label or number, a class against others, a text, or likeness."""
# What an object says, by its fields: those of a row may stand together.
_TEXT, _CLASSES, _LIKENESS = ("text",), ("class", "against", "margin"), ("like", "patch")


def _target(name: str, value: object, bounds: Bounds) -> TargetRequest:
    if not isinstance(value, dict):
        return _class(name, value, bounds.classes)
    given = {each: part for each, part in fields(name, value, _TEXT + _CLASSES + _LIKENESS).items() if part is not None}
    kind = next((each for each in (_TEXT, _CLASSES, _LIKENESS) if given and set(given) <= set(each)), None)
    if kind == _TEXT:
        return _text(name, given["text"])
    if kind == _LIKENESS:
        return _likeness(name, given, bounds.layout)
    if kind == _CLASSES and {"class"} != set(given):
        return _difference(name, given, bounds.classes)
    found = f"an object with {choices(given)}" if given else "an empty object"
    expected = (
        '{"text": ...}, {"like": ..., "patch": ...}, {"class": ..., "against": ...} or {"class": ..., "margin": true}'
    )
    raise MethodError(f"{name}: {found}; expected {expected}")


def _text(name: str, text: object) -> TextPrompt:
    if not isinstance(text, str) or not 0 < len(text.strip()) <= MAX_TEXT_CHARS:
        raise MethodError(f"{name}.text = {quote(text)}: expected 1 to {MAX_TEXT_CHARS:,} characters")
    return TextPrompt(_encodable(name, text.strip()))


def _likeness(name: str, given: Mapping[str, Any], layout: TokenLayout | None) -> LikenessRequest:
    picture = given.get("like")
    # Of another picture, its layout is not known yet.
    patch = _patch(f"{name}.patch", given["patch"], layout if picture is None else None) if "patch" in given else None
    if isinstance(picture, dict):
        return LikenessRequest(upload_of(picture, f"{name}.like"), patch)
    if picture is not None and not is_picture(picture):
        raise MethodError(f"{name}.like = {quote(picture)}: {PICTURE}, or a file that was uploaded here")
    return LikenessRequest(picture, patch)


def _patch(name: str, value: object, layout: TokenLayout | None) -> tuple[int, int]:
    found = token_of(name, value, layout) if isinstance(value, list | tuple) else None
    if not isinstance(found, tuple):
        raise MethodError(f"{name} = {quote(value)}: expected [row, column] of a patch")
    return found


def _difference(name: str, given: Mapping[str, Any], classes: int) -> ClassDifference:
    first, second = (
        None if given.get(each) is None else _class(f"{name}.{each}", given[each], classes) for each in _CLASSES[:2]
    )
    if not classes:
        raise MethodError(f"{name}: {NO_CLASSIFIER}")
    has_margin = switch(f"{name}.margin", given.get("margin", False))
    if has_margin == (second is not None):
        raise MethodError(f"{name}: expected either against, another class, or margin, true for the best of all others")
    if first is not None and first == second:
        raise MethodError(f"{name}: class and against are the same; expected two classes")
    return ClassDifference(first, second)


def target_json(target: TargetRequest) -> int | str | dict[str, Any]:
    """A target as a state has it.

    Raises:
        MethodError: it is likeness to an upload, which a state knows by an id.
    """
    match target:
        case TextPrompt(text):
            return {"text": text}
        case LikenessRequest(picture, patch):
            if isinstance(picture, Upload):
                raise MethodError(f"target.like = {quote(picture.name)}: {PICTURE}")
            return {name: part for name, part in (("like", picture), ("patch", patch)) if part is not None}
        case ClassDifference(first, second):
            others = {"margin": True} if second is None else {"against": second}
            return ({} if first is None else {"class": first}) | others
    return target


def _class(name: str, value: object, classes: int) -> int | str:
    if not classes:
        raise MethodError(f"{name} = {quote(value)}: {NO_CLASSIFIER}")
    if isinstance(value, str):
        if not 0 < len(value) <= LONGEST_LABEL:
            raise MethodError(f"{name} = {quote(value)}: expected a label of the model")
        return _encodable(name, value)
    return int(number(name, value, 0, classes - 1, whole=True))


def _encodable(name: str, text: str) -> str:
    """A text that UTF-8 can write: JSON may hold halves of characters."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise MethodError(f"{name} = {quote(text)}: expected whole characters") from None
    return text


def legal(parameter: Parameter) -> str:
    """What a parameter takes, whatever the model."""
    match parameter:
        case Choice():
            return choices(_values(parameter))
        case Number():
            return _numbers(parameter.minimum, parameter.maximum, parameter.whole)
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


def _numbers(least: float, most: float, whole: bool) -> str:
    return f"a {'whole ' * whole}number from {least:g} to {most:g}"


def _values(parameter: Choice) -> list[str]:
    """The values of a choice that are not null."""
    return [value for _, value in parameter.options if value is not None]
