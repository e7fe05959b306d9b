"""Attention that a module writes out by hand: a product of queries and keys, a softmax, and a product with values.

This follows the scores from the first product to the softmax, and reads scale and bias from the operations on the way.
A mistake cannot go unnoticed, since every call is verified by its output.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils.weak import WeakIdKeyDictionary

from vitviz.models.capture.calls import AttentionCall
from vitviz.models.capture.einsum import einsum_context, einsum_scores

Function = Callable[..., Any]

PRODUCTS = frozenset({torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__, torch.bmm, torch.Tensor.bmm})
SOFTMAXES = frozenset({F.softmax, torch.softmax, torch.Tensor.softmax, torch.special.softmax})
MULTIPLICATIONS = frozenset({torch.mul, torch.multiply, torch.Tensor.mul, torch.Tensor.mul_, torch.Tensor.multiply})
DIVISIONS = frozenset(
    {torch.div, torch.divide, torch.true_divide, torch.Tensor.div, torch.Tensor.div_, torch.Tensor.true_divide}
)
ADDITIONS = frozenset({torch.add, torch.Tensor.add, torch.Tensor.add_})
MASKS = frozenset({torch.masked_fill, torch.Tensor.masked_fill, torch.Tensor.masked_fill_})
RESHAPES = frozenset(
    {torch.reshape, torch.unsqueeze, torch.squeeze, torch.flatten}
    | {torch.Tensor.view, torch.Tensor.reshape, torch.Tensor.unsqueeze, torch.Tensor.squeeze, torch.Tensor.flatten}
    | {torch.unflatten, torch.Tensor.unflatten}
)
COPIES = frozenset(
    {torch.Tensor.to, torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16, torch.Tensor.type}
    | {torch.Tensor.type_as, torch.Tensor.contiguous, torch.Tensor.clone, torch.clone, F.dropout, torch.dropout}
)


@dataclass(frozen=True, eq=False)
class Scores:
    """Attention scores ``queries · keysᵀ · scale + bias``, with the fields of :class:`AttentionCall`."""

    queries: torch.Tensor
    keys: torch.Tensor
    scale: float = 1.0
    bias: torch.Tensor | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.queries.shape[:-1], self.keys.shape[-2])

    def times(self, factor: float | torch.Tensor) -> Scores | None:
        """The scores multiplied by a number, or by one for each head or query; None for another factor."""
        bias = None if self.bias is None else self.bias * factor
        if not isinstance(factor, torch.Tensor):
            return replace(self, scale=self.scale * factor, bias=bias)
        if factor.ndim and factor.shape[-1] != 1:
            return None
        return replace(self, queries=self.queries * factor, bias=bias)

    def plus(self, bias: torch.Tensor) -> Scores:
        return replace(self, bias=bias if self.bias is None else self.bias + bias)

    def reshape(self, shape: tuple[int, ...]) -> Scores | None:
        """The scores with other leading dimensions; None if the last two dimensions change."""
        if shape[-2:] != self.shape[-2:] or self.queries.shape[:-2] != self.keys.shape[:-2]:
            return None
        bias = None if self.bias is None else self.bias.expand(self.shape).reshape(shape)
        queries, keys = (tensor.reshape(*shape[:-2], *tensor.shape[-2:]) for tensor in (self.queries, self.keys))
        return replace(self, queries=queries, keys=keys, bias=bias)


class EagerAttentionTracer:
    """Finds attention that a module computes step by step, and follows its scores and weights through the steps."""

    def __init__(self) -> None:
        self._scores: Any = WeakIdKeyDictionary()
        self._weights: Any = WeakIdKeyDictionary()
        self.calls = 0
        """Number of calls of attention so far."""
        self.unused = 0
        """Number of softmaxes with as many queries as keys that have not led to a call of attention."""

    def observe(
        self, function: Function, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> AttentionCall | None:
        """Observe a function's result; returns the call of attention that it completes, or None."""
        if not isinstance(result, torch.Tensor) or result.ndim < 2:
            return None
        if function in PRODUCTS and len(args) == 2:
            return self._product(*args, result)
        if function is torch.functional.einsum:
            return self._einsum(args, result)
        source = args[0] if args and isinstance(args[0], torch.Tensor) else kwargs.get("input")
        if not isinstance(source, torch.Tensor):
            return None
        if function in SOFTMAXES:
            self._softmax(source, args, kwargs, result)
        elif function in MULTIPLICATIONS | DIVISIONS | ADDITIONS:
            self._arithmetic(function, args, kwargs, result)
        elif source in self._scores:
            scores = self._derive(function, self._scores[source], args, kwargs, result)
            self._follow(self._scores, function, source, scores, result)
        elif source in self._weights:
            weights = self._derive(function, self._weights[source], args, kwargs, result)
            self._follow(self._weights, function, source, weights, result)
        return None

    def _product(self, first: torch.Tensor, second: torch.Tensor, result: torch.Tensor) -> AttentionCall | None:
        if first in self._weights:
            return self._call(self._weights.pop(first), second, result)
        if first.ndim >= 3 and first.ndim == second.ndim and first.is_floating_point():
            self._scores[result] = Scores(first, second.mT)
        return None

    def _einsum(self, args: tuple[Any, ...], result: torch.Tensor) -> AttentionCall | None:
        equation, *operands = args
        if len(operands) == 1 and isinstance(operands[0], list | tuple):
            operands = list(operands[0])
        if not isinstance(equation, str) or len(operands) != 2:
            return None
        for weights, values, swapped in ((*operands, False), (*reversed(operands), True)):
            if weights in self._weights:
                context = einsum_context(equation, values, swapped)
                scores = self._weights.pop(weights)
                return None if context is None else self._call(scores, context[0], result, context[1])
        pair = einsum_scores(equation, *operands)
        if pair is not None:
            self._scores[result] = Scores(*pair)
        return None

    def _softmax(
        self, source: torch.Tensor, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: torch.Tensor
    ) -> None:
        dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
        if dim not in (-1, result.ndim - 1) or result.ndim < 3 or min(result.shape[-2:]) < 2:
            return
        self.unused += result.shape[-1] == result.shape[-2]
        if source in self._scores:
            self._weights[result] = self._scores[source]

    def _arithmetic(
        self, function: Function, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: torch.Tensor
    ) -> None:
        source, operand = args[0], kwargs.get("other", args[1] if len(args) > 1 else None)
        if isinstance(operand, torch.Tensor) and operand in self._scores and function not in DIVISIONS:
            source, operand = operand, source
        if not isinstance(source, torch.Tensor) or source not in self._scores:
            return
        scores: Scores | None = self._scores[source]
        assert scores is not None
        if set(kwargs) - {"other"} or not isinstance(operand, int | float | torch.Tensor):
            scores = None
        elif function in ADDITIONS:
            # The softmax ignores a constant.
            scores = scores.plus(operand) if isinstance(operand, torch.Tensor) else scores
        else:
            scores = scores.times(1 / operand if function in DIVISIONS else operand)
        if scores is not None and tuple(result.shape) != scores.shape:
            scores = scores.reshape(tuple(result.shape)) if result.numel() == math.prod(scores.shape) else None
        self._follow(self._scores, function, source, scores, result)

    def _derive(
        self,
        function: Function,
        scores: Scores,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        result: torch.Tensor,
    ) -> Scores | None:
        """The scores behind a function's result for scores or weights; None if the function is not supported."""
        if function in COPIES:
            return scores
        if function in RESHAPES:
            return scores.reshape(tuple(result.shape))
        if function in MASKS and len(args) == 3 and isinstance(args[1], torch.Tensor):
            mask, value = args[1:]
            # The lowest finite number hides a key just as minus infinity does.
            if isinstance(value, int | float) and value <= torch.finfo(result.dtype).min / 2:
                bias = torch.zeros(mask.shape, dtype=result.dtype, device=result.device)
                return scores.plus(bias.masked_fill_(mask, -math.inf))
        return None

    def _follow(
        self, registry: Any, function: Function, source: torch.Tensor, scores: Scores | None, result: torch.Tensor
    ) -> None:
        if scores is not None:
            registry[result] = scores
        elif getattr(function, "__name__", "").endswith("_"):
            # The function changed its source in place, in an unsupported way.
            registry.pop(source, None)

    def _call(
        self,
        scores: Scores,
        values: torch.Tensor,
        output: torch.Tensor,
        to_output: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ) -> AttentionCall:
        self.calls += 1
        self.unused -= scores.shape[-1] == scores.shape[-2]
        call = AttentionCall(scores.queries, scores.keys, values, scores.scale, scores.bias, output)
        return call if to_output is None else replace(call, to_output=to_output)
