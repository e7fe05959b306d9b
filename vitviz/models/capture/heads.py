"""Calls of attention side by side whose outputs a module joins: heads that are modules of their own, or branches.

A call's output is followed through functions that move or project its numbers. If a function concatenates, stacks or
adds the outputs of several calls, these calls are the heads of one call, with the function's result as its output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

from vitviz.models.capture.calls import AttentionCall
from vitviz.models.capture.eager_attention import ADDITIONS, COPIES, MULTIPLICATIONS, RESHAPES, Function

CONCATENATIONS = frozenset({torch.cat, torch.concat, torch.concatenate, torch.stack, torch.hstack, torch.dstack})
MOVES = frozenset(
    {torch.permute, torch.transpose, torch.movedim, torch.swapaxes, torch.Tensor.permute, torch.Tensor.transpose}
    | {torch.Tensor.movedim, torch.Tensor.swapaxes, torch.Tensor.expand, F.linear, *RESHAPES, *COPIES}
)


@dataclass(frozen=True, eq=False)
class _Part:
    """A call whose output became a tensor, and how: from its ``"batch head query dim"`` before any projection."""

    call: AttentionCall
    replay: Callable[[torch.Tensor], torch.Tensor]
    is_projected: bool = False


class HeadJoiner:
    """Finds the calls whose outputs are joined."""

    def __init__(self) -> None:
        self._parts: Any = WeakIdKeyDictionary()

    def add(self, call: AttentionCall, output: torch.Tensor) -> None:
        """Follow the output of a call."""
        # A call that kept its output would keep the key of the dictionary alive.
        call = replace(call, output=output.new_empty(0))
        self._parts[output] = _Part(call, call.to_output)

    def observe(
        self, function: Function, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> AttentionCall | None:
        """Observe a function's result; returns the call of all heads that it completes, or None."""
        if not isinstance(result, torch.Tensor) or not args:
            return None
        tensors = args[0] if function in CONCATENATIONS else args[:2] if function in ADDITIONS else args[:1]
        if not isinstance(tensors, tuple | list) or any(not self._is_part(tensor) for tensor in tensors):
            return None
        parts = [self._parts[tensor] for tensor in tensors if isinstance(tensor, torch.Tensor)]
        if function in CONCATENATIONS:
            join: Callable[..., torch.Tensor] = lambda *items: function(list(items), *args[1:], **kwargs)  # noqa: E731
        elif function in ADDITIONS:
            join = lambda *items: sum(items[1:], items[0])  # noqa: E731
        elif self._keeps(function, args, parts, result):
            join = lambda item: function(item, *args[1:], **kwargs)  # noqa: E731
        else:
            return None
        if len(parts) == 1:
            replay = parts[0].replay
            is_projected = parts[0].is_projected or function is F.linear
            part = replace(parts[0], replay=lambda context: join(replay(context)), is_projected=is_projected)
            self._parts[result] = part
            return None
        return _join(parts, join, result)

    def _keeps(self, function: Function, args: tuple[Any, ...], parts: list[_Part], result: torch.Tensor) -> bool:
        """Whether a function only moves, projects, or scales after a projection, the numbers of one call."""
        if function is torch.Tensor.__getitem__:
            return bool(result.numel() == args[0].numel())
        is_scaled = function in MULTIPLICATIONS and len(args) == 2 and isinstance(args[1], nn.Parameter)
        return function in MOVES or (is_scaled and parts[0].is_projected)

    def _is_part(self, value: Any) -> bool:
        # Python's sum() begins with 0.
        return value in self._parts if isinstance(value, torch.Tensor) else type(value) is int and value == 0


def _join(parts: list[_Part], join: Callable[..., torch.Tensor], output: torch.Tensor) -> AttentionCall | None:
    """The call with the heads of all parts; None if they attend among different numbers of tokens, or share a call."""
    calls = [part.call for part in parts]
    first, numbers = calls[0], tuple(call.number for call in calls)
    sizes = {
        (*call.queries.shape[:-3], *call.queries.shape[-2:], call.key_count, call.values.shape[-1]) for call in calls
    }
    if len(sizes) > 1 or len(set(numbers)) < len(numbers):
        return None
    bias = None
    if any(call.bias is not None for call in calls):
        bias = torch.cat(list(_biases(calls)), -3)
    counts, replays = [call.heads for call in calls], [part.replay for part in parts]

    def to_output(context: torch.Tensor) -> torch.Tensor:
        contexts = context.split(counts, -3)
        return join(*(replay(each) for replay, each in zip(replays, contexts, strict=True)))

    return AttentionCall(
        torch.cat([call.queries * (call.scale / first.scale) for call in calls], -3),
        torch.cat([call.keys for call in calls], -3),
        torch.cat([call.values for call in calls], -3),
        first.scale,
        bias,
        output,
        to_output,
        first.tokens if all(call.tokens is first.tokens for call in calls) else None,
        parts=numbers,
    )


def _biases(calls: list[AttentionCall]) -> Iterator[torch.Tensor]:
    """The bias of each call with all its dimensions; zeros for none."""
    for call in calls:
        shape = (*call.queries.shape[:-1], call.key_count)
        yield call.queries.new_zeros(shape) if call.bias is None else call.bias.expand(shape)
