"""Checks of arguments, which may have any type until then, and their conversion to the expected one.

A wrong argument raises one :class:`vitviz.VitvizError`, which says what was found, what is expected, and which name was
probably meant. Numbers of NumPy and torch count as Python's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Any, ParamSpec, TypeVar

from vitviz.errors.kinds import ConfigError, MethodError, VitvizError
from vitviz.errors.messages import choices, described, did_you_mean, with_article

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
Instance = TypeVar("Instance")
Class = TypeVar("Class", bound=type)


def whole_or_none(value: object) -> int | None:
    """A whole number of Python, NumPy or torch, or an array or tensor that holds one; None for anything else."""
    number = _item(value)
    return int(number) if isinstance(number, int) and not isinstance(number, bool) else None


def number_or_none(value: object) -> float | None:
    """A finite number in the same way; None for anything else."""
    number = _item(value)
    if not isinstance(number, int | float) or isinstance(number, bool):
        return None
    return number if math.isfinite(number) else None


def pair_or_none(value: object) -> tuple[int, int] | None:
    """Two whole numbers in a tuple, list, array or tensor; None for anything else."""
    listed = value.tolist() if hasattr(value, "tolist") else value
    if not isinstance(listed, tuple | list) or len(listed) != 2:
        return None
    first, second = map(whole_or_none, listed)
    return None if first is None or second is None else (first, second)


def whole(name: str, value: object, least: int, error: type[VitvizError] = ConfigError) -> int:
    """A whole number that is not too small.

    Raises:
        error: it is none.
    """
    found = whole_or_none(value)
    if found is None or found < least:
        raise error(f"{name} = {described(value)}: expected a whole number of at least {least}")
    return found


def number(
    name: str,
    value: object,
    is_legal: Callable[[float], bool],
    expected: str,
    error: type[VitvizError] = MethodError,
) -> float:
    """A finite number within bounds, which ``expected`` puts into words.

    Raises:
        error: it is none.
    """
    found = number_or_none(value)
    if found is None or not is_legal(found):
        raise error(f"{name} = {described(value)}: expected {expected}")
    return found


def word(
    name: str, value: object, legal: Collection[str], error: type[VitvizError] = MethodError, also: str = ""
) -> str:
    """One of a few words; ``also`` says what else there is.

    Raises:
        error: it is none of them.
    """
    if isinstance(value, str) and value in legal:
        return value
    raise error(f"{name} {described(value)}: expected {choices(legal)}{also}{did_you_mean(value, legal)}")


def words(name: str, values: object, legal: Collection[str]) -> tuple[str, ...]:
    """Several of a few words, each of which ``name`` calls.

    Raises:
        MethodError: one is none of them, or there is a single text, whose letters would be taken for words.
    """
    if isinstance(values, str) or not isinstance(values, Iterable):
        example = f"({next(iter(legal))!r},)"
        raise MethodError(f"{name}s = {described(values)}: expected several, such as {example}")
    return tuple(word(name, each, legal) for each in values)


def pairs(name: str, values: object, what: str, error: type[VitvizError]) -> list[tuple[int, int]]:
    """Pairs of whole numbers, of which ``what`` says what they are.

    Raises:
        error: there is something else.
    """
    found = [pair_or_none(each) for each in values] if isinstance(values, Iterable) else [None]
    if any(pair is None for pair in found):
        single = pair_or_none(values)
        example = [(0, 1)] if single is None else [single]
        raise error(f"{name} = {described(values)}: expected pairs of {what}, such as {example}")
    return [pair for pair in found if pair is not None]


def instance(name: str, value: object, kind: type[Instance], example: str) -> Instance:
    """An object of a class of vitviz, of which ``example`` says where one is had.

    Raises:
        ConfigError: it is none.
    """
    if not isinstance(value, kind):
        expected = f"expected {with_article(kind.__name__)}, such as {example} gives"
        raise ConfigError(f"{name}: {described(value)} found; {expected}")
    return value


def no_parameter(function: str, name: str, legal: Collection[str]) -> str:
    """The message about an argument that a function does not have."""
    return f"{function} has no parameter {name!r}: expected {choices(legal)}{did_you_mean(name, legal)}"


def named_arguments(
    error: type[VitvizError], unknown: Callable[..., str] | None = None
) -> Callable[[Callable[Arguments, Result]], Callable[Arguments, Result]]:
    """A function whose call with a misspelt, missing or surplus argument is one sentence instead of a ``TypeError``.

    Args:
        error: that is raised.
        unknown: takes the call's arguments and, as ``unknown``, the name that the function does not have, and gives
            the sentence about it; where it is not given, all names of the function are legal.
    """

    def wrap(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        return _checked(function, function.__name__, error, unknown)

    return wrap


def named_fields(error: type[VitvizError]) -> Callable[[Class], Class]:
    """A dataclass in the same way: a misspelt, missing or surplus field is one sentence."""

    def wrap(made: Class) -> Class:
        made.__init__ = _checked(made.__init__, made.__name__, error, None)  # type: ignore[misc]
        return made

    return wrap


def _checked(
    function: Callable[Arguments, Result],
    name: str,
    error: type[VitvizError],
    unknown: Callable[..., str] | None,
) -> Callable[Arguments, Result]:
    takes = signature(function)
    legal = [parameter for parameter in takes.parameters if parameter != "self"]

    @wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        try:
            takes.bind(*args, **kwargs)
        except TypeError as mistake:
            strange = next((each for each in kwargs if each not in takes.parameters), None)
            if strange is None:
                raise error(f"{name}: {mistake}; expected {name}({_listed(takes)})") from None
            if unknown is None:
                raise error(no_parameter(name, strange, legal)) from None
            keywords: dict[str, Any] = {key: value for key, value in kwargs.items() if key in takes.parameters}
            raise error(unknown(*args, unknown=strange, **keywords)) from None
        return function(*args, **kwargs)

    return call


def _listed(takes: Signature) -> str:
    """Parameters by name; those with a default have an equals sign."""
    named = [each for each in takes.parameters.values() if each.name != "self"]
    return ", ".join(each.name + "=…" * (each.default is not Parameter.empty) for each in named)


def _item(value: object) -> object:
    """The only number of an array, tensor or NumPy scalar; anything else as it is."""
    shape, item = getattr(value, "shape", None), getattr(value, "item", None)
    return item() if isinstance(shape, tuple) and math.prod(shape) == 1 and callable(item) else value
