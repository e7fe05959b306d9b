"""Sums, differences, multiples and absolute values of maps on one picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn, TypeVar

from PIL import Image

from vitviz.attention.token_map import TokenMap
from vitviz.errors.arguments import number_or_none
from vitviz.errors.kinds import MethodError
from vitviz.errors.messages import describe
from vitviz.images.geometry import Geometry

Own = TypeVar("Own", bound="Arithmetic")

NUMBERS = "heatmap.values are its numbers, and vitviz.Heatmap.of(values, image) is a map of others"


@dataclass(frozen=True, eq=False)
class Arithmetic:
    """The fields of a heatmap, and its operators, each of which gives another one."""

    token_map: TokenMap
    image: Image.Image
    geometry: Geometry
    model: str = ""
    weights: bytes = field(default=b"", repr=False)

    # Numbers of NumPy, of a lower one, leave operators to the map; arrays, of a higher one, take it as an array.
    __array_priority__ = -1

    def __add__(self: Own, other: object) -> Own:
        """The sum of two maps on one picture.

        Raises:
            MethodError: the other is no heatmap, or is one of another picture, place or grid.
        """
        return _combined(self, other, "plus")

    def __radd__(self: Own, other: object) -> Own:
        # What sum() begins with.
        return self if number_or_none(other) == 0 else _combined(self, other, "plus")

    def __sub__(self: Own, other: object) -> Own:
        """The difference of two maps on one picture, as a signed map: zero has the middle of the colours.

        Raises:
            MethodError: the other is no heatmap, or is one of another picture, place or grid.
        """
        return _combined(self, other, "minus")

    def __mul__(self: Own, factor: object) -> Own:
        """The map times a number; of a negative one, it is a signed map.

        Raises:
            MethodError: the factor is no number, or is zero.
        """
        return _scaled(self, _factor(factor, "times"))

    __rmul__ = __mul__

    def __truediv__(self: Own, divisor: object) -> Own:
        """The map divided by a number, as :meth:`__mul__` multiplies it.

        Raises:
            MethodError: the divisor is no number, or is zero.
        """
        return _scaled(self, 1 / _factor(divisor, "divided by"))

    def __rsub__(self, other: object) -> NoReturn:
        # Of the operators that maps do not have.
        raise MethodError(
            f"a heatmap and {describe(other)}: expected map + map, map - map, map * number or map / number; {NUMBERS}"
        )

    __rtruediv__ = __pow__ = __rpow__ = __lt__ = __le__ = __gt__ = __ge__ = __rsub__

    def __neg__(self: Own) -> Own:
        """The map with the other sign, as a signed map."""
        return _scaled(self, -1)

    def __abs__(self: Own) -> Own:
        """The absolute values, as a map without signs."""
        low, high = self.token_map.domain
        domain = max(low, -high, 0.0), max(-low, high)
        return _changed(self, abs, f"absolute {self.token_map.quantity}", "absolute value of ({})", domain, False)


def _factor(value: object, words: str) -> float:
    factor = number_or_none(value)
    if not factor:
        raise MethodError(f"a heatmap {words} {describe(value)}: expected a number other than 0; {NUMBERS}")
    return factor


def _scaled(heatmap: Own, factor: float) -> Own:
    token_map = heatmap.token_map
    ends = sorted(end * factor for end in token_map.domain)
    words = "−({})" if factor == -1 else f"{factor:.4g} × ({{}})"
    signed = token_map.signed or factor < 0
    return _changed(heatmap, lambda value: value * factor, token_map.quantity, words, (ends[0], ends[1]), signed)


def _changed(
    heatmap: Own,
    change: Callable[[Any], Any],
    quantity: str,
    words: str,
    domain: tuple[float, float],
    signed: bool,
) -> Own:
    """A map with every value changed; ``words`` is its description, with the place of that of the map itself."""
    old = heatmap.token_map
    prefix = {name: change(value) for name, value in old.prefix.items()}
    token_map = TokenMap(change(old.values), prefix, quantity, words.format(old.description), domain, signed)
    return replace(heatmap, token_map=token_map)


def _combined(first: Own, other: object, word: str) -> Own:
    """The values of one map plus or minus those of another on the same picture.

    Raises:
        MethodError: the other is no heatmap, or is one of another picture, place or grid.
    """
    if not isinstance(other, type(first)):
        raise MethodError(f"a heatmap {word} {describe(other)}: expected another heatmap; {NUMBERS}")
    name, sign = ("sum", 1) if word == "plus" else ("difference", -1)
    for kind, found, found_other in (
        ("grids", _size(first.token_map.values.shape, "patches"), _size(other.token_map.values.shape, "patches")),
        ("pictures", _size(first.image.size, "pixels"), _size(other.image.size, "pixels")),
        ("parts of the picture", str(first.geometry.box), str(other.geometry.box)),
    ):
        if found != found_other:
            raise MethodError(f"{name} of maps on two {kind}, {found} and {found_other}: expected one")
    if not is_same_picture(first.image, other.image):
        raise MethodError(f"{name} of maps on two pictures of one size: expected maps on one picture")
    one, two = first.token_map, other.token_map
    # Two maps of one model need no name.
    is_one_model = (first.model, first.weights) == (other.model, other.weights)
    suffix = " with other weights" if first.model == other.model != "" else ""
    names = ("", "") if is_one_model else (first.model, other.model + suffix)
    left = _operand(names[0], one, bool(names[0]))
    right = _operand(names[1], two, sign < 0 or not is_one_model)
    quantities = " and ".join(dict.fromkeys((one.quantity, two.quantity)))
    ends = sorted(sign * end for end in two.domain)
    token_map = TokenMap(
        one.values + sign * two.values,
        {key: one.prefix[key] + sign * two.prefix[key] for key in one.prefix if key in two.prefix},
        f"{name} of the {quantities}",
        f"{left}; {word}{' ' if names[1] else ': '}{right}",
        (one.domain[0] + ends[0], one.domain[1] + ends[1]),
        signed=sign < 0 or one.signed or two.signed,
    )
    # The description of a map of two models has their names.
    model, weights = (first.model, first.weights) if is_one_model else ("", b"")
    return replace(first, token_map=token_map, model=model, weights=weights)


def _operand(name: str, token_map: TokenMap, is_apart: bool) -> str:
    """The description with the name of its model, if any; in brackets, if it is that of a sum and stands apart.

    A sentence about this map alone stands in brackets, too.
    """
    is_sum = is_apart and any(f"; {word}" in token_map.description for word in ("plus", "minus"))
    text = f"({token_map.description})" if is_sum or token_map.emptiness else token_map.description
    return f"{name}: {text}" if name else text


def is_same_picture(first: Image.Image, second: Image.Image) -> bool:
    """Whether two pictures have the same pixels."""
    return first is second or (first.size == second.size and first.tobytes() == second.tobytes())


def _size(sides: Sequence[int], unit: str) -> str:
    return f"{sides[0]}×{sides[1]} {unit}"
