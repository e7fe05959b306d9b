"""Attention that a module writes out by hand: a product of queries and keys, a softmax, and a product with values.

This follows the scores from the first product to the softmax, and reads scale and bias from the operations on the way.
What another elementwise operation does to the scores is a bias, too. A mistake cannot go unnoticed, since every call is
verified by its output.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils.weak import WeakIdKeyDictionary

from vitviz.models.capture.calls import AttentionCall
from vitviz.models.capture.einsum import einsum_context, einsum_scores

Function = Callable[..., Any]

PRODUCTS = frozenset(
    {torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__, torch.bmm, torch.Tensor.bmm, torch.mm, torch.Tensor.mm}
)
SOFTMAXES = frozenset({F.softmax, torch.softmax, torch.Tensor.softmax, torch.special.softmax})
MULTIPLICATIONS = frozenset({torch.mul, torch.multiply, torch.Tensor.mul, torch.Tensor.mul_, torch.Tensor.multiply})
DIVISIONS = frozenset(
    {torch.div, torch.divide, torch.true_divide, torch.Tensor.div, torch.Tensor.div_, torch.Tensor.true_divide}
)
ADDITIONS = frozenset({torch.add, torch.Tensor.add, torch.Tensor.add_})
SUBTRACTIONS = frozenset({torch.sub, torch.subtract, torch.Tensor.sub, torch.Tensor.sub_, torch.Tensor.subtract})
ELEMENTWISE = frozenset(
    {torch.masked_fill, torch.Tensor.masked_fill, torch.Tensor.masked_fill_, torch.Tensor.__setitem__, torch.where}
    | {torch.Tensor.where, torch.clamp, torch.Tensor.clamp, torch.Tensor.clamp_, torch.clip, torch.Tensor.clip}
    | {torch.Tensor.clip_, torch.Tensor.clamp_min, torch.Tensor.clamp_max, torch.maximum, torch.minimum}
    | {torch.tanh, torch.Tensor.tanh, torch.Tensor.tanh_, torch.nan_to_num, torch.Tensor.nan_to_num}
)
RESHAPES = frozenset(
    {torch.reshape, torch.unsqueeze, torch.squeeze, torch.flatten}
    | {torch.Tensor.view, torch.Tensor.reshape, torch.Tensor.unsqueeze, torch.Tensor.squeeze, torch.Tensor.flatten}
    | {torch.unflatten, torch.Tensor.unflatten}
)
COPIES = frozenset(
    {torch.Tensor.to, torch.Tensor.float, torch.Tensor.double, torch.Tensor.half, torch.Tensor.bfloat16}
    | {torch.Tensor.type, torch.Tensor.type_as, torch.Tensor.contiguous, torch.Tensor.clone, torch.clone}
    | {F.dropout, torch.dropout}
)


@dataclass(eq=False)
class Origin:
    """The fate of one product of queries and keys, or of a softmax of something else.

    Args:
        layer: number of the layer.
        softmaxes: numbers of its softmaxes with as many queries as keys.
        operation: name of the first operation that could not be followed.
    """

    layer: int
    softmaxes: list[int] = field(default_factory=list)
    operation: str = ""


@dataclass(frozen=True, eq=False)
class Scores:
    """Attention scores ``queries · keysᵀ · scale + bias``, with the fields of :class:`AttentionCall`."""

    queries: torch.Tensor
    keys: torch.Tensor
    origin: Origin
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

    def plus(self, bias: float | torch.Tensor) -> Scores:
        # The softmax ignores a constant.
        if not isinstance(bias, torch.Tensor) or not bias.ndim or bias.shape[-1] == 1:
            return self
        return replace(self, bias=bias if self.bias is None else self.bias + bias)

    def equal_to(self, result: torch.Tensor) -> Scores:
        """The scores with the bias with which they equal ``result``."""
        return replace(self, bias=result - self.queries @ self.keys.mT * self.scale)

    def reshape(self, shape: tuple[int, ...]) -> Scores | None:
        """The scores with other leading dimensions; None if the last two dimensions change."""
        if shape[-2:] != self.shape[-2:] or self.queries.shape[:-2] != self.keys.shape[:-2]:
            return None
        bias = None if self.bias is None else self.bias.expand(self.shape).reshape(shape)
        queries, keys = (tensor.reshape(*shape[:-2], *tensor.shape[-2:]) for tensor in (self.queries, self.keys))
        return replace(self, queries=queries, keys=keys, bias=bias)


@dataclass
class SoftmaxDisturbance:
    """Replaces the results of some softmaxes by NaN, which reaches all that depends on them, however little.

    Args:
        targets: their numbers, as :class:`Origin` has them.
    """

    targets: Collection[int]
    number: int = 0

    def __call__(self, function: Function, args: tuple[Any, ...], result: Any) -> Any:
        if function not in SOFTMAXES or not isinstance(result, torch.Tensor) or result.ndim < 2:
            return result
        number, self.number = self.number, self.number + 1
        return torch.full_like(result, math.nan) if number in self.targets else result


class EagerAttentionTracer:
    """Finds attention that a module computes step by step, and follows its scores and weights through the steps."""

    def __init__(self) -> None:
        self._scores: Any = WeakIdKeyDictionary()
        self._weights: Any = WeakIdKeyDictionary()
        self._used: Any = WeakIdKeyDictionary()
        self.reused: list[int] = []
        """Layers whose attention weights make a product beside the one with their values."""
        self._lost: Any = WeakIdKeyDictionary()
        self._origins: dict[int, Origin] = {}
        self.calls = 0
        """Number of calls of attention so far."""
        self._layer = self._softmaxes = 0

    @property
    def unused(self) -> list[Origin]:
        """Softmaxes with as many queries as keys that have not led to a call of attention."""
        return [origin for origin in self._origins.values() if origin.softmaxes]

    @property
    def lost(self) -> list[Origin]:
        """Products of as many queries as keys whose scores or weights could not be followed."""
        return [origin for origin in self._origins.values() if origin.operation]

    def observe(
        self, function: Function, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any, layer: int
    ) -> AttentionCall | None:
        """Observe a function's result; returns the call of attention that it completes, or None.

        Args:
            function: with its arguments and result.
            layer: number of calls so far, of any kind.
        """
        self._layer = layer
        if function is torch.Tensor.__setitem__:
            result = args[0]
        if not isinstance(result, torch.Tensor) or result.ndim < 2:
            return None
        if function in PRODUCTS and len(args) == 2:
            return self._product(*args, result)
        if function is torch.functional.einsum:
            return self._einsum(args, result)
        tensors = [each for each in (*args, *kwargs.values()) if isinstance(each, torch.Tensor)]
        source = next((each for each in tensors if each in self._scores or each in self._weights), None)
        if function in SOFTMAXES:
            self._softmax(tensors[0], args, kwargs, result)
        elif source is not None:
            registry = self._scores if source in self._scores else self._weights
            scores = self._derive(function, registry is self._scores, source, args, kwargs, result)
            self._follow(registry, function, source, scores, result)
        else:
            lost = next((each for each in tensors if each in self._lost), None)
            if lost is not None and lost.shape == result.shape:
                self._lost[result] = self._lost[lost]
        return None

    def _product(self, first: torch.Tensor, second: torch.Tensor, result: torch.Tensor) -> AttentionCall | None:
        self._note_reuse(first, second)
        if first in self._weights:
            return self._call(self._take_weights(first), second, result)
        if first.ndim == second.ndim and first.is_floating_point():
            self._scores[result] = Scores(first, second.mT, self._origin(result))
        return None

    def _einsum(self, args: tuple[Any, ...], result: torch.Tensor) -> AttentionCall | None:
        equation, *operands = args
        if len(operands) == 1 and isinstance(operands[0], list | tuple):
            operands = list(operands[0])
        if not isinstance(equation, str) or len(operands) != 2:
            return None
        self._note_reuse(*operands)
        for weights, values, swapped in ((*operands, False), (*reversed(operands), True)):
            if weights in self._weights:
                context = einsum_context(equation, weights, values, swapped)
                if context is None:
                    self._follow(self._weights, torch.functional.einsum, weights, None, result)
                    return None
                return self._call(self._take_weights(weights), context[0], result, context[1])
        pair = einsum_scores(equation, *operands)
        if pair is not None:
            self._scores[result] = Scores(*pair, self._origin(result))
        return None

    def _take_weights(self, weights: torch.Tensor) -> Scores:
        self._used[weights] = self._layer
        scores: Scores = self._weights.pop(weights)
        return scores

    def _note_reuse(self, *tensors: torch.Tensor) -> None:
        self.reused += [self._used[tensor] for tensor in tensors if tensor in self._used]

    def _origin(self, scores: torch.Tensor) -> Origin:
        origin = Origin(self._layer)
        if scores.shape[-1] == scores.shape[-2] > 1:
            self._origins[id(origin)] = origin
        return origin

    def _softmax(
        self, source: torch.Tensor, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: torch.Tensor
    ) -> None:
        number, self._softmaxes = self._softmaxes, self._softmaxes + 1
        dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
        scores = self._scores.get(source)
        # One query may ask, such as CLS in a last layer; of something else than scores, it is a softmax of classes.
        is_of_one = result.shape[-1] < 2 or (scores is None and min(result.shape[-2:]) < 2)
        if dim not in (-1, result.ndim - 1) or is_of_one:
            if scores is not None:
                scores.origin.operation = "softmax over another axis"
            return
        origin = scores.origin if scores is not None else self._lost.get(source)
        if origin is None and result.ndim > 2:
            origin = self._origin(result)
            origin.operation = "softmax"
        if origin is not None and result.shape[-1] == result.shape[-2]:
            origin.softmaxes.append(number)
        if scores is not None:
            self._weights[result] = scores

    def _derive(
        self,
        function: Function,
        has_scores: bool,
        source: torch.Tensor,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        result: torch.Tensor,
    ) -> Scores | None:
        """The scores behind a function's result for scores or weights; None if the function is not supported."""
        scores: Scores = (self._scores if has_scores else self._weights)[source]
        if function in COPIES:
            return scores
        if function in RESHAPES:
            return scores.reshape(tuple(result.shape))
        if not has_scores:
            return None
        if function in ELEMENTWISE and result.shape == source.shape == scores.shape:
            # A clamp or a mask may change nothing.
            return scores if result is not source and torch.equal(result, source) else scores.equal_to(result)
        return self._arithmetic(function, scores, source, args, kwargs, result)

    def _arithmetic(
        self,
        function: Function,
        scores: Scores,
        source: torch.Tensor,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        result: torch.Tensor,
    ) -> Scores | None:
        first, operand = args[0], kwargs.get("other", args[1] if len(args) > 1 else None)
        if operand is source and function not in DIVISIONS | SUBTRACTIONS:
            first, operand = operand, first
        if first is not source or set(kwargs) - {"other"} or not isinstance(operand, int | float | torch.Tensor):
            return None
        derived: Scores | None = None
        if function in ADDITIONS | SUBTRACTIONS:
            derived = scores.plus(operand if function in ADDITIONS else -operand)
        elif function in MULTIPLICATIONS | DIVISIONS:
            derived = scores.times(1 / operand if function in DIVISIONS else operand)
        if derived is not None and tuple(result.shape) != derived.shape:
            derived = derived.reshape(tuple(result.shape)) if result.numel() == math.prod(derived.shape) else None
        return derived

    def _follow(
        self, registry: Any, function: Function, source: torch.Tensor, scores: Scores | None, result: torch.Tensor
    ) -> None:
        if scores is not None:
            registry[result] = scores
            return
        origin, name = registry[source].origin, getattr(function, "__name__", "a function")
        # A reduction, such as a maximum, reads the scores only.
        if result.numel() >= source.numel():
            origin.operation = origin.operation or name.strip("_")
            self._lost[result] = origin
        if name.endswith("_"):
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
        self._origins.pop(id(scores.origin), None)
        call = AttentionCall(scores.queries, scores.keys, values, scores.scale, scores.bias, output)
        return call if to_output is None else replace(call, to_output=to_output)
