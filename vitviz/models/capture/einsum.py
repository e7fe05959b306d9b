"""Attention written with einsum, such as ``"b i h d, b j h d -> b h i j"``, in one order of dimensions."""

from __future__ import annotations

from collections.abc import Callable

import torch


def einsum_scores(equation: str, first: torch.Tensor, second: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Queries ``"… query dim"`` and keys ``"… key dim"`` of a product ``"… query key"``; None for another product."""
    letters = _letters(equation)
    if letters is None:
        return None
    one, two, out = letters
    if len(out) < 3:
        return None
    *batch, query, key = out
    if query in two and query not in one:
        one, two, first, second = two, one, second, first
    contracted = [letter for letter in one if letter not in out]
    is_product = (set(one), set(two)) == ({*batch, query, *contracted}, {*batch, key, *contracted})
    if len(contracted) != 1 or not is_product:
        return None
    return _permute(first, one, [*batch, query, *contracted]), _permute(second, two, [*batch, key, *contracted])


def einsum_context(
    equation: str, values: torch.Tensor, swapped: bool
) -> tuple[torch.Tensor, Callable[[torch.Tensor], torch.Tensor]] | None:
    """Values ``"… key dim"`` of a product with weights ``"… query key"``, and the map from context to output.

    None for another product.

    Args:
        equation: equation of the product.
        values: the operand that is not the weights.
        swapped: whether the weights are the second operand.
    """
    letters = _letters(equation)
    if letters is None:
        return None
    one, two, out = letters
    weights, operand = (two, one) if swapped else (one, two)
    if len(weights) < 3:
        return None
    *batch, query, key = weights
    free = [letter for letter in operand if letter not in weights]
    if len(free) != 1 or set(operand) != {*batch, key, *free} or set(out) != {*batch, query, *free}:
        return None
    context = [*batch, query, *free]
    order = [context.index(letter) for letter in out]
    return _permute(values, operand, [*batch, key, *free]), lambda tensor: tensor.permute(order)


def _letters(equation: str) -> tuple[list[str], list[str], list[str]] | None:
    operands, arrow, out = equation.replace(" ", "").partition("->")
    one, comma, two = operands.partition(",")
    # An ellipsis, a trace or a third operand is not attention.
    is_plain = all(letters.isalpha() and len(set(letters)) == len(letters) for letters in (one, two, out))
    return (list(one), list(two), list(out)) if arrow and comma and is_plain else None


def _permute(tensor: torch.Tensor, letters: list[str], order: list[str]) -> torch.Tensor:
    return tensor.permute([letters.index(letter) for letter in order])
