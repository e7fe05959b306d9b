"""What a module does not state, gathered into one message with the call that states it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import isqrt
from typing import Any, TypeVar

from torch import nn

from vitviz.errors.kinds import ConfigError
from vitviz.models.watched.grids import grid_of
from vitviz.weights.modules.sizes import Size

Value = TypeVar("Value")
# Most tokens that are not patches, and sides of patches, when sizes are guessed from a number of tokens.
MAX_EXTRA = 9
LIKELY_PATCHES = (16, 14, 8, 32, 4, 12, 7, 2)
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


def patch_size_not_stated(patch: Size | None) -> NotStated:
    """That a module does not state the size of its patches, which is likely to be ``patch``, if that is known."""
    expected = "the height and width of its patches in pixels, such as 16"
    return NotStated("patch_size", expected, _side_or_sides(patch or (16, 16)))


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
    return NotStated("image_size", expected, _side_or_sides(size or (224, 224)))


def _side_or_sides(size: Size) -> str:
    return repr(size[0] if size[0] == size[1] else size)


def likely_patch(tokens: int, size: Size) -> Size | None:
    """The patches that cut an image into as many as there are tokens, or a few less; None if there are none."""
    grids = (grid_of(tokens - extra, size) for extra in range(min(tokens, MAX_EXTRA + 1)))
    return next(((size[0] // grid[0], size[1] // grid[1]) for grid in grids if grid is not None), None)


def likely_sizes(module: nn.Module, patch: Size | None) -> Iterator[Size]:
    """Square images whose patches could be as many as a tensor has positions, and then one of 224 pixels."""
    tensors = (*module.named_parameters(), *module.named_buffers())
    counts = {
        tensor.shape[-2]
        for name, tensor in tensors
        if tensor.ndim in (2, 3) and ("pos" in name or (tensor.ndim == 3 and len(tensor) == 1))
    }
    for count in sorted(counts, reverse=True):
        for patches in range(count, max(3, count - MAX_EXTRA), -1):
            side = isqrt(patches)
            if side**2 == patches:
                for height, width in ((each, each) for each in LIKELY_PATCHES) if patch is None else (patch,):
                    yield side * height, side * width
    yield 224, 224
