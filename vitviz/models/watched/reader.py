"""Reads the calls of attention while a program runs, and writes others in their place.

What other operations do to scores and weights that are written by hand is a bias: the logarithm of the weights, less
the product of queries and keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from vitviz.attention.precision import precise
from vitviz.models.watched.attention_operations import (
    MIN_WEIGHT,
    ROUNDING,
    Attention,
    Operands,
    arguments_of,
    is_split,
    operands_of,
    queries_and_keys,
)
from vitviz.models.watched.calls import AttentionCall, as_bias, causal_bias, repeat_groups
from vitviz.models.watched.program import Hook, Step, Values


def read_call(
    part: Attention,
    steps: Sequence[Step],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    result: Any,
    operands: Operands,
    rows: slice = slice(None),
) -> AttentionCall:
    """The call of one part, when its last step has run.

    Args:
        part: the attention.
        steps: of the program.
        args, kwargs, result: of its last step.
        operands: of the products that make its scores.
        rows: the queries to read; of all, a bias may take the square of the tokens.
    """
    step = steps[part.step]
    if part.is_fused:
        return fused_call(arguments_of(step, args, kwargs), result, rows)
    first, second = operands_of(step, args)
    weights, values, output = (second.mT, first.mT, result.mT) if part.is_flipped else (first, second, result)

    def lead(tensor: torch.Tensor, is_of_keys: bool = False) -> torch.Tensor:
        if is_of_keys:
            each = tensor.unsqueeze(-3).expand(*tensor.shape[:-2], part.shared, *tensor.shape[-2:])
        else:
            each = tensor.unflatten(-2, (part.shared, -1))
        # There may be more pictures.
        found = each.reshape(-1, *part.leading[1:], *each.shape[-2:])
        return (found.transpose(1, 2) if part.is_swapped else found).flatten(0, -4)

    values, output, weights = lead(values, True), lead(output)[..., rows, :], precise(lead(weights)[..., rows, :])
    # Queries and keys of zero explain nothing.
    queries, keys = torch.zeros_like(output), torch.zeros_like(values)
    if part.scores is not None:
        queries, keys = queries_and_keys(steps[part.scores], operands[part.scores], part.is_flipped)
        queries, keys = lead(queries)[..., rows, :] / part.factor, lead(keys, True) / part.factor
    # Such a weight is not exact, and one of zero has no derivative of its logarithm.
    is_lost = weights < torch.finfo(weights.dtype).tiny
    logarithm = weights.masked_fill(is_lost, 1).log().masked_fill(is_lost, -math.inf)
    bias = _rest(queries, keys, part.scale, logarithm)
    return AttentionCall(queries, keys, values, part.scale, bias, output)


def call_hooks(
    number: int, parts: Sequence[Attention], on_call: Callable[[AttentionCall], torch.Tensor], steps: Sequence[Step]
) -> dict[int, Hook]:
    """Hooks that pass one call of attention to a function, which returns the output in its place."""
    operands: Operands = {}
    calls, has_split = list[AttentionCall](), is_split(steps, parts)

    def on_scores(step: int, args: Sequence[Any], kwargs: Any, result: Any, values: Values) -> Any:
        operands[step] = args
        return result

    def on_output(step: int, args: Sequence[Any], kwargs: Any, result: Any, values: Values) -> Any:
        calls.append(read_call(parts[len(calls)], steps, args, kwargs, result, operands))
        if len(calls) < len(parts):
            return result
        call = replace(_joined(calls, has_split), number=number)
        counts = [each.query_count if has_split else each.heads for each in calls]
        calls.clear()
        operands.clear()
        output = on_call(call)
        if output is call.output:
            return result
        pieces = output.split(counts, -2 if has_split else -3)
        for before, piece in zip(parts[:-1], pieces, strict=False):
            values[before.step] = _as_result(before, piece, values[before.step])
        return _as_result(parts[-1], pieces[-1], result)

    hooks: dict[int, Hook] = {part.scores: on_scores for part in parts if part.scores is not None}
    return hooks | {part.step: on_output for part in parts}


def fused_call(given: Mapping[str, Any], result: Any, rows: slice = slice(None)) -> AttentionCall:
    """The call of a fused kernel, from its arguments by name and its results; of some queries."""
    queries, keys, values = (given[name] for name in ("query", "key", "value"))
    bias = given.get("attn_mask", given.get("attn_bias"))
    # A row for all queries is that of each.
    bias = as_bias(bias if bias is None or bias.shape[-2] == 1 else bias[..., rows, :], queries)
    if given.get("is_causal"):
        bias = causal_bias(queries, keys, rows)
    scale = given.get("scale")
    scale = queries.shape[-1] ** -0.5 if scale is None else scale
    keys, values = (repeat_groups(groups, queries.shape[-3]) for groups in (keys, values))
    return AttentionCall(queries[..., rows, :], keys, values, scale, bias, result[0][..., rows, :])


def _joined(calls: Sequence[AttentionCall], split: bool) -> AttentionCall:
    """One call with the heads, or the queries, of several."""
    if len(calls) == 1:
        return calls[0]
    first, dim = calls[0], -2 if split else -3
    bias = None
    if any(call.bias is not None for call in calls):
        pairs = [(call, first.queries.new_zeros(()) if call.bias is None else call.bias) for call in calls]
        bias = torch.cat([each.expand(*call.queries.shape[:-1], call.key_count) for call, each in pairs], dim)
    queries = torch.cat([call.queries * (call.scale / first.scale) for call in calls], dim)
    keys = first.keys if split else torch.cat([call.keys for call in calls], dim)
    values = first.values if split else torch.cat([call.values for call in calls], dim)
    return AttentionCall(queries, keys, values, first.scale, bias, torch.cat([call.output for call in calls], dim))


def _as_result(part: Attention, output: torch.Tensor, result: Any) -> Any:
    """An output in the shape, type and memory format of a step's result."""
    if part.is_fused:
        return (torch.empty_like(result[0]).copy_(output.reshape(result[0].shape)), *result[1:])
    output = output.unflatten(0, (-1, part.leading[2])).transpose(1, 2) if part.is_swapped else output
    output = output.reshape(*result.shape[:-2], -1, output.shape[-1])
    return torch.empty_like(result).copy_(output.mT if part.is_flipped else output)


def _rest(queries: torch.Tensor, keys: torch.Tensor, scale: float, logarithm: torch.Tensor) -> torch.Tensor | None:
    """What makes weights, given as logarithms, of the scaled product; None for nothing but a number for each query.

    That number is of no consequence, and is left out, so that a bias is small.
    """
    product = precise(queries) @ precise(keys).mT * scale
    bias = logarithm - product
    # What the product explains of the others, it explains of weights that are nearly zero.
    is_small = product < product.logsumexp(-1, keepdim=True) + math.log(MIN_WEIGHT)
    highest = bias.masked_fill(is_small, -math.inf).amax(-1, keepdim=True)
    spread = highest - bias.masked_fill(is_small, math.inf).amin(-1, keepdim=True)
    bound = ROUNDING.get(queries.dtype, 1e-5) * max(1.0, float(product.detach().abs().max()))
    if not bool((spread <= bound).all()):
        return bias - bias.where(bias.isfinite(), 0).mean(-1, keepdim=True)
    # Scores this far apart are less exact than their softmax.
    return bias.where(~is_small, highest) if bool(is_small.any()) else None
