"""Attention written with einsum, such as ``"b i h d, b j h d -> b h i j"``, in one order of dimensions."""

from __future__ import annotations

from collections.abc import Callable

import torch


def einsum_scores(equation: str, first: torch.Tensor, second: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Queries ``"… query dim"`` and keys ``"… key dim"`` of a product ``"… query key"``; None for another product."""
    letters = _letters(equation, first.ndim, second.ndim)
    if letters is None:
        return None
    one, two, out = letters
    if len(out) < 2:
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
    equation: str, weights: torch.Tensor, values: torch.Tensor, swapped: bool
) -> tuple[torch.Tensor, Callable[[torch.Tensor], torch.Tensor]] | None:
    """Values ``"… key dim"`` of a product with weights ``"… query key"``, and the map from context to output.

    None for another product.

    Args:
        equation: equation of the product.
        weights: an operand.
        values: the operand that is not the weights.
        swapped: whether the weights are the second operand.
    """
    operands = (values, weights) if swapped else (weights, values)
    letters = _letters(equation, *(operand.ndim for operand in operands))
    if letters is None:
        return None
    one, two, out = letters
    of_weights, operand = (two, one) if swapped else (one, two)
    if len(of_weights) < 2:
        return None
    *batch, query, key = of_weights
    free = [letter for letter in operand if letter not in of_weights]
    if len(free) != 1 or set(operand) != {*batch, key, *free} or set(out) != {*batch, query, *free}:
        return None
    context = [*batch, query, *free]
    order = [context.index(letter) for letter in out]
    return _permute(values, operand, [*batch, key, *free]), lambda tensor: tensor.permute(order)


def _letters(equation: str, *dimensions: int) -> tuple[list[str], list[str], list[str]] | None:
    """The letters of both operands and of the result, with capital ones from A on in place of an ellipsis.

    None for an equation that is not attention: a trace, a third operand, or other capital letters.
    """
    operands, arrow, out = equation.replace(" ", "").partition("->")
    one, comma, two = operands.partition(",")
    if not arrow or not comma:
        return None
    counts = {count - len(each) + 3 for each, count in zip((one, two), dimensions, strict=True) if "..." in each}
    if len(counts) > 1 or (counts and not equation.replace(" ", "").islower()):
        return None
    batch = "".join(chr(ord("A") + number) for number in range(max(counts, default=0)))
    one, two, out = (letters.replace("...", batch) for letters in (one, two, out))
    is_plain = all(letters.isalpha() and len(set(letters)) == len(letters) for letters in (one, two, out))
    return (list(one), list(two), list(out)) if is_plain else None


def _permute(tensor: torch.Tensor, letters: list[str], order: list[str]) -> torch.Tensor:
    return tensor.permute([letters.index(letter) for letter in order])
