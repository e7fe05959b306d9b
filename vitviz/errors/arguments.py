"""Checks of arguments of any type, and their conversion to the expected type.

A wrong argument raises a :class:`vitviz.VitvizError` that says what was found, what is expected, and which name was
probably meant. Numbers of NumPy and torch are accepted like Python's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import wraps
from inspect import Parameter, signature
from typing import Any, ParamSpec, TypeVar, cast

from vitviz.errors.kinds import ConfigError, MethodError, VitvizError
from vitviz.errors.messages import choices, describe, did_you_mean, with_article

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
Instance = TypeVar("Instance")
Class = TypeVar("Class", bound=type)
Word = TypeVar("Word", bound=str)
Number = TypeVar("Number", int, float)
# First parameters that a call does not name.
OWNERS = ("self", "cls")


def integer_or_none(value: object) -> int | None:
    """A whole number of Python, NumPy or torch, or of a one-element array or tensor; None for anything else."""
    number = _item(value)
    return int(number) if isinstance(number, int) and not isinstance(number, bool) else None


def number_or_none(value: object) -> float | None:
    """A finite number of Python, NumPy or torch, or of a one-element array or tensor; None for anything else."""
    number = _item(value)
    if not isinstance(number, int | float) or isinstance(number, bool):
        return None
    return number if math.isfinite(number) else None


def pair_or_none(value: object) -> tuple[int, int] | None:
    """Two whole numbers in a tuple, list, array or tensor; None for anything else."""
    return two_or_none(integer_or_none, value)


def two_or_none(convert: Callable[[object], Number | None], value: object) -> tuple[Number, Number] | None:
    """Two numbers in a tuple, list, array or tensor, each as ``convert`` gives it; None for anything else."""
    items = value.tolist() if hasattr(value, "tolist") else value
    if not isinstance(items, tuple | list) or len(items) != 2:
        return None
    first, second = map(convert, items)
    return None if first is None or second is None else (first, second)


def integer(name: str, value: object, minimum: int, error: type[VitvizError] = ConfigError) -> int:
    """Return ``value`` as a whole number of at least ``minimum``.

    Raises:
        error: it is no whole number, or too small.
    """
    result = integer_or_none(value)
    if result is None or result < minimum:
        raise error(f"{name} = {describe(value)}: expected a whole number of at least {minimum}")
    return result


def number(
    name: str,
    value: object,
    is_legal: Callable[[float], bool],
    expected: str,
    error: type[VitvizError] = MethodError,
) -> float:
    """Return ``value`` as a finite number that is legal; ``expected`` describes the legal ones.

    Raises:
        error: it is no such number.
    """
    result = number_or_none(value)
    if result is None or not is_legal(result):
        raise error(f"{name} = {describe(value)}: expected {expected}")
    return result


def boolean(name: str, value: object, expected: str = "True or False") -> bool:
    """Return ``value`` as a boolean of Python, also one of NumPy or torch; ``expected`` spells the two in the message.

    Raises:
        MethodError: it is something else.
    """
    result = _item(value)
    if not isinstance(result, bool):
        raise MethodError(f"{name} = {describe(value)}: expected {expected}")
    return result


def word(
    name: str, value: object, legal: Collection[Word], error: type[VitvizError] = MethodError, also: str = ""
) -> Word:
    """Return ``value`` if it is one of the legal words; ``also`` ends the list of these in the message.

    Raises:
        error: it is none of them.
    """
    if isinstance(value, str) and value in legal:
        return cast(Word, value)
    raise error(f"{name} {describe(value)}: expected {choices(legal)}{also}{did_you_mean(value, legal)}")


def words(name: str, values: object, legal: Collection[Word]) -> tuple[Word, ...]:
    """Return several of the legal words as a tuple; ``name`` is the singular in messages.

    Raises:
        MethodError: one is not legal, or ``values`` is a single string, whose letters would be taken for words.
    """
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise MethodError(f"{name}s = {describe(values)}: expected several, such as ({next(iter(legal))!r},)")
    return tuple(word(name, value, legal) for value in values)


def pairs(name: str, values: object, contents: str, error: type[VitvizError]) -> list[tuple[int, int]]:
    """Return pairs of whole numbers; ``contents`` names the two numbers in the message.

    Raises:
        error: a value is no such pair.
    """
    result = [pair_or_none(value) for value in values] if isinstance(values, Iterable) else [None]
    if any(pair is None for pair in result):
        raise error(
            f"{name} = {describe(values)}: expected pairs of {contents}, such as {[pair_or_none(values) or (0, 1)]}"
        )
    return [pair for pair in result if pair is not None]


def instance(
    name: str, value: object, kind: type[Instance], example: str, error: type[VitvizError] = ConfigError
) -> Instance:
    """Return ``value`` if it is an instance of ``kind``; ``example`` is code that gives one.

    Raises:
        error: it is not.
    """
    if not isinstance(value, kind):
        raise error(f"{name}: {describe(value)} found; expected {with_article(kind.__name__)}, such as {example} gives")
    return value


def no_parameter(function: str, name: str, legal: Collection[str]) -> str:
    """The error message about a parameter that a function does not have."""
    expected = f"expected {choices(legal)}{did_you_mean(name, legal)}" if legal else "it has none"
    return f"{function} has no parameter {name!r}: {expected}"


def checked_parameters(function: str, legal: Collection[str], options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that are not None, each one of the legal parameters of a method or a probe.

    Raises:
        MethodError: it has no such parameter.
    """
    arguments = {name: value for name, value in options.items() if value is not None}
    for name in arguments:
        if name not in legal:
            raise MethodError(no_parameter(function, name, legal))
    return arguments


def named_arguments(
    error: type[VitvizError], unknown: Callable[..., str] | None = None
) -> Callable[[Callable[Arguments, Result]], Callable[Arguments, Result]]:
    """Decorator that raises ``error`` instead of a ``TypeError`` for a misspelt, missing or surplus argument.

    Args:
        error: the class to raise.
        unknown: returns the message about a misspelt name. It is called with the arguments of the call and with the
            name as ``unknown`` and its value as ``wrong_value``. None lists all parameters of the function.
    """

    def wrap(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        is_of_class = next(iter(signature(function).parameters), None) == "cls"
        return _checked(function, function.__qualname__ if is_of_class else function.__name__, error, unknown)

    return wrap


def named_fields(error: type[VitvizError], instead: str = "") -> Callable[[Class], Class]:
    """Decorator of a class that raises ``error`` for a misspelt, missing or surplus field or argument.

    Args:
        error: the class to raise.
        instead: the code that gives such an object, where nobody makes one by hand.
    """

    def wrap(cls: Class) -> Class:
        cls.__init__ = _checked(cls.__init__, cls.__name__, error, None, instead)  # type: ignore[misc]
        return cls

    return wrap


def _checked(
    function: Callable[Arguments, Result],
    name: str,
    error: type[VitvizError],
    unknown: Callable[..., str] | None,
    instead: str = "",
) -> Callable[Arguments, Result]:
    expected = signature(function)
    legal = {name: each for name, each in expected.parameters.items() if name not in OWNERS}
    explain = unknown or (lambda *_, unknown, **__: no_parameter(name, unknown, legal))

    @wraps(function)
    def checked(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        try:
            expected.bind(*args, **kwargs)
        except TypeError as mistake:
            misspelt = next((name for name in kwargs if name not in expected.parameters), None)
            if misspelt is None:
                usual = f"{name}({_parameter_list(legal.values())})"
                raise error(f"{name}: {mistake}; expected {instead or usual}") from None
            keywords: dict[str, Any] = {key: value for key, value in kwargs.items() if key in expected.parameters}
            raise error(explain(*args, unknown=misspelt, wrong_value=kwargs[misspelt], **keywords)) from None
        return function(*args, **kwargs)

    return checked


def _parameter_list(parameters: Iterable[Parameter]) -> str:
    """The names of the parameters; ``=…`` marks those with a default, and for a model stands what gives one.

    Others of any name are left out.
    """
    named = (each for each in parameters if each.kind != Parameter.VAR_KEYWORD)
    return ", ".join(
        "vitviz.load()" if each.annotation == "Model" else each.name + "=…" * (each.default is not Parameter.empty)
        for each in named
    )


def _item(value: object) -> object:
    """The number in a one-element array or tensor, or a NumPy scalar; any other value unchanged."""
    shape, item = getattr(value, "shape", None), getattr(value, "item", None)
    return item() if isinstance(shape, tuple) and math.prod(shape) == 1 and callable(item) else value
