"""What a module does not state, gathered into one message with the call that states it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import isqrt
from typing import Any, TypeVar

from torch import nn

from vitviz.errors.kinds import ConfigError
from vitviz.weights.modules.sizes import Size

Value = TypeVar("Value")
# Most tokens that are not patches, when an image size is guessed from the number of positions.
MAX_EXTRA = 9
# Longest list of labels that a message spells out.
MAX_LABELS = 8


class NotStated(ConfigError):
    """A module does not state something.

    Args:
        argument: of :func:`vitviz.load` that states it.
        expected: what the argument is, in words.
        example: code for the argument.
    """

    def __init__(self, argument: str, expected: str, example: str) -> None:
        super().__init__(f"{argument} = {expected}")
        self.argument, self.expected, self.example = argument, expected, example


class Questions:
    """Collects everything that a module does not state.

    Args:
        name: of the module.
        stated: arguments of :func:`vitviz.load` from the user, which the call in the message repeats.
    """

    def __init__(self, name: str, stated: Mapping[str, Any]) -> None:
        self._name, self._missing = name, list[NotStated]()
        self._stated = {argument: value for argument, value in stated.items() if value is not None}

    def __bool__(self) -> bool:
        return bool(self._missing)

    def add(self, missing: NotStated) -> None:
        """Note what is not stated."""
        self._missing.append(missing)

    def ask(self, find: Callable[[], Value]) -> Value | None:
        """What ``find`` returns; None if it raises :class:`NotStated`, which is noted."""
        try:
            return find()
        except NotStated as error:
            self.add(error)
            return None

    def error(self) -> ConfigError:
        """One error that asks for all that is missing."""
        names = ", ".join(each.argument for each in self._missing)
        meanings = "; ".join(str(each) for each in self._missing)
        arguments = [f"{argument}={_code(value)}" for argument, value in self._stated.items()]
        arguments += [f"{each.argument}={each.example}" for each in self._missing]
        call = f"vitviz.load(module, {', '.join(arguments)})"
        return ConfigError(f"{self._name}: the module does not say its {names}; expected {meanings}; such as {call}")


def _code(value: Any) -> str:
    """Code for an argument; an ellipsis for an object."""
    return repr(value) if isinstance(value, int | str | tuple | list) and len(repr(value)) <= 60 else "…"


PATCH_SIZE_NOT_STATED = NotStated("patch_size", "the height and width of its patches in pixels, such as 16", "16")


def labels_not_stated(width: int | None) -> NotStated:
    """That a module with this many outputs, None if unknown, does not name its classes."""
    if width is None:
        return NotStated("labels", "the names of its classes, or () where its outputs are features", "()")
    expected = f"{width} names where its {width} outputs are classes, or () where they are features"
    names = [f"class {number}" for number in range(width)]
    example = repr(names) if width <= MAX_LABELS else f"[f'class {{number}}' for number in range({width})]"
    return NotStated("labels", expected, example)


def prefix_not_stated(extra: int | None) -> NotStated:
    """That a module does not name its tokens that are no patches, of which there are ``extra``; None if unknown."""
    expected = "the names of its tokens that are no patches, such as ['cls', 'register 1']"
    if extra is not None:
        expected = f"{extra} name{'s' * (extra != 1)}, of its tokens that are no patches"
    names = ["cls", *(f"register {number}" for number in range(1, extra or 1))]
    return NotStated("prefix", expected, repr(names))


def image_size_not_stated(size: Size | None) -> NotStated:
    """That a module does not state the size of its images; it runs on images of ``size``, if that is known."""
    expected = "the height and width of its images in pixels, such as 224"
    height, width = size or (224, 224)
    return NotStated("image_size", expected, repr(height if height == width else (height, width)))


def likely_sizes(module: nn.Module, patch: Size | None) -> Iterator[Size]:
    """Square images whose patches could be as many as a parameter has positions, and then one of 224 pixels."""
    counts = [
        parameter.shape[-2]
        for name, parameter in module.named_parameters()
        if parameter.ndim in (2, 3) and ("pos" in name or (parameter.ndim == 3 and len(parameter) == 1))
    ]
    for count in counts if patch is not None else ():
        for patches in range(count, max(3, count - MAX_EXTRA), -1):
            if isqrt(patches) ** 2 == patches and patch is not None:
                yield isqrt(patches) * patch[0], isqrt(patches) * patch[1]
    yield 224, 224
