"""Attention in Einstein's notation, such as ``"b i h d, b j h d -> b h i j"``, brought to one order of dimensions."""

from __future__ import annotations

from collections.abc import Callable

import torch


def einsum_scores(equation: str, first: torch.Tensor, second: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Queries ``"… query dim"`` and keys ``"… key dim"`` of a product that gives ``"… query key"``, if it does."""
    letters = _letters(equation)
    if letters is None:
        return None
    one, two, out = letters
    if len(out) < 3:
        return None
    *batch, query, key = out
    if query in two and query not in one:
        one, two, first, second = two, one, second, first
    summed = [letter for letter in one if letter not in out]
    wanted = (set(one), set(two)) == ({*batch, query, *summed}, {*batch, key, *summed})
    if len(summed) != 1 or not wanted:
        return None
    return _permuted(first, one, [*batch, query, *summed]), _permuted(second, two, [*batch, key, *summed])


def einsum_context(
    equation: str, values: torch.Tensor, swapped: bool
) -> tuple[torch.Tensor, Callable[[torch.Tensor], torch.Tensor]] | None:
    """Values ``"… key dim"`` of a product of weights ``"… query key"`` with them, and what brings the context to its
    output; None for another product.

    Args:
        equation: of the product.
        values: the operand that is not the weights.
        swapped: whether the weights are its second operand.
    """
    letters = _letters(equation)
    if letters is None:
        return None
    one, two, out = letters
    weights, other = (two, one) if swapped else (one, two)
    if len(weights) < 3:
        return None
    *batch, query, key = weights
    free = [letter for letter in other if letter not in weights]
    if len(free) != 1 or set(other) != {*batch, key, *free} or set(out) != {*batch, query, *free}:
        return None
    context = [*batch, query, *free]
    order = [context.index(letter) for letter in out]
    return _permuted(values, other, [*batch, key, *free]), lambda found: found.permute(order)


def _letters(equation: str) -> tuple[list[str], list[str], list[str]] | None:
    operands, arrow, out = equation.replace(" ", "").partition("->")
    one, comma, two = operands.partition(",")
    parts = (one, two, out)
    # An ellipsis, a trace or a third operand is something else.
    plain = all(part.isalpha() and len(set(part)) == len(part) for part in parts)
    return (list(one), list(two), list(out)) if arrow and comma and plain else None


def _permuted(tensor: torch.Tensor, letters: list[str], order: list[str]) -> torch.Tensor:
    return tensor.permute([letters.index(letter) for letter in order])
