"""Where the tokens of a call lie in the picture, whatever order and windows the module attends in."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from vitviz.attention.precision import precise
from vitviz.models.capture.calls import AttentionCall


@dataclass(frozen=True, eq=False)
class TokenPlaces:
    """Which tokens of a layer's call are which of a :class:`vitviz.TokenLayout`.

    Args:
        index: ``"token"``: of each token of the layout, its place among those of the call, window after window.
        windows: how many sequences of tokens attend apart from each other; 1 for global attention.
        has_heads_first: whether the call's dimensions are ``"batch head window token dim"``, as Hiera has them.
    """

    index: torch.Tensor
    windows: int = 1
    has_heads_first: bool = False

    @property
    def is_sorted(self) -> bool:
        """Whether the tokens stand as in the layout already."""
        return self.windows == 1 and torch.equal(self.index, torch.arange(len(self.index)))

    @property
    def is_in_reading_order(self) -> bool:
        """Whether all tokens attend to each other, those that are no patches before and behind the patches."""
        steps = self.index.diff()
        return self.windows == 1 and int((steps != 1).sum()) <= 2

    def by_window(self, call: AttentionCall) -> AttentionCall:
        """The call of one image with the dimensions ``"window head token dim"``."""
        if call.queries.ndim == 4 and not self.has_heads_first:
            return call
        queries, keys, values = (self._turned(part) for part in (call.queries, call.keys, call.values))
        leading, bias, to_output = queries.shape[:-3], call.bias, call.to_output
        if bias is not None:
            bias = self._turned(bias.view(*(1,) * (call.queries.ndim - bias.ndim), *bias.shape))
            bias = bias.expand(*leading, *bias.shape[-3:]).flatten(0, -4)
        queries, keys, values = (part.flatten(0, -4) for part in (queries, keys, values))
        return replace(
            call,
            queries=queries,
            keys=keys,
            values=values,
            bias=bias,
            to_output=lambda context: to_output(self._turned(context.unflatten(0, leading))),
        )

    def sort(self, part: torch.Tensor) -> torch.Tensor:
        """``"window head token dim"`` as ``"head token dim"`` in the order of the layout."""
        if self.is_sorted:
            return part[0]
        return part.transpose(0, 1).flatten(1, 2).index_select(1, self.index.to(part.device))

    def bias(self, call: AttentionCall) -> torch.Tensor | None:
        """What is added to the scores of a call :meth:`by_window`, ``"head query key"``: minus infinity outside of the
        window of a query, so that it attends to nothing there. The head may be 1; None for nothing."""
        bias = call.bias
        if bias is None and self.windows == 1:
            return None
        if bias is None:
            bias = precise(call.queries.new_zeros(1, 1, 1, 1))
        bias = precise(bias.detach())
        bias = bias.expand(*bias.shape[:-2], call.query_count, call.key_count)
        while bias.ndim < 4:
            bias = bias[None]
        bias = bias.expand(self.windows, -1, -1, -1)
        count = len(self.index)
        if self.is_sorted:
            return bias[0]
        token = torch.empty(count, dtype=torch.long)
        token[self.index] = torch.arange(count)
        token = token.view(self.windows, -1).to(bias.device)
        whole = bias.new_full((bias.shape[1], count, count), -math.inf)
        whole[:, token[:, :, None], token[:, None, :]] = bias.transpose(0, 1)
        return whole

    def _turned(self, part: torch.Tensor) -> torch.Tensor:
        """Windows before heads, or back."""
        return part.transpose(1, 2) if self.has_heads_first else part
