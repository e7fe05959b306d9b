"""Sides of pictures and patches in pixels, as files, modules and users state them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeGuard

# Far above any real side, and small enough to divide by.
MAX_SIDE = 1_000_000


def are_sides(value: object, count: int) -> TypeGuard[Sequence[int]]:
    """Whether a value is a list of as many sides of an image in pixels."""
    return (
        isinstance(value, list | tuple)
        and len(value) == count
        and all(type(side) is int and 1 <= side <= MAX_SIDE for side in value)
    )


def both_sides(value: object) -> tuple[int, int] | None:
    """Height and width from one number or a pair; None for another value."""
    sides = (value, value) if isinstance(value, int) else value
    return (sides[0], sides[1]) if are_sides(sides, 2) else None
