"""Sides of pictures and patches in pixels, as files, modules and users state them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeGuard

# Far above any real side, and small enough to divide by.
MAX_SIDE = 1_000_000


def is_side(value: object) -> TypeGuard[int]:
    """Whether a value can be a side of an image in pixels."""
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_SIDE


def are_sides(value: object, count: int) -> TypeGuard[Sequence[int]]:
    """Whether a value is a list of as many sides of an image in pixels."""
    return isinstance(value, list | tuple) and len(value) == count and all(map(is_side, value))


def both_sides(value: object) -> tuple[int, int] | None:
    """Height and width from one number or a pair; None for another value."""
    if is_side(value):
        return value, value
    return (value[0], value[1]) if are_sides(value, 2) else None
