"""Where the tokens of a call lie in the picture, whatever order and windows the module attends in."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

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
        pads: places of tokens that only fill up windows, and are the same in each of them.
        is_padded: whether the layout begins with one token for all of these, which ``index`` leaves out: windows of
            this layer or of another reach beyond the picture.
    """

    index: torch.Tensor
    windows: int = 1
    has_heads_first: bool = False
    pads: torch.Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.long))
    is_padded: bool = False

    @property
    def is_sorted(self) -> bool:
        """Whether the tokens stand as in the layout already."""
        in_order = self.windows == 1 and torch.equal(self.index, torch.arange(len(self.index)))
        return in_order and not self.is_padded

    @property
    def is_in_reading_order(self) -> bool:
        """Whether all tokens attend to each other, those that are no patches before and behind the patches."""
        steps = self.index.diff()
        return self.windows == 1 and int((steps != 1).sum()) <= 2 and not self.is_padded

    @property
    def token_count(self) -> int:
        """How many tokens the layout has."""
        return len(self.index) + self.is_padded

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

    def sort(self, part: torch.Tensor, fills: bool = False) -> torch.Tensor:
        """``"window head token dim"`` as ``"head token dim"`` in the order of the layout.

        Args:
            part: of a call.
            fills: whether the one token of what fills up windows has its numbers; zeros else, as a query or key whose
                scores are its bias alone.
        """
        if self.is_sorted:
            return part[0]
        return self.sort_tokens(part.transpose(0, 1).flatten(1, 2), fills)

    def sort_tokens(self, part: torch.Tensor, fills: bool = False) -> torch.Tensor:
        """``"… token dim"``, window after window, as :meth:`sort` gives it."""
        found = part.index_select(-2, self.index.to(part.device))
        if not self.is_padded:
            return found
        has_own = fills and len(self.pads) > 0
        first = part[..., self.pads[:1].to(part.device), :] if has_own else torch.zeros_like(part[..., :1, :])
        return torch.cat([first, found], -2)

    def bias(self, call: AttentionCall) -> torch.Tensor | None:
        """What is added to the scores of a call :meth:`by_window`, ``"head query key"``: minus infinity outside of the
        window of a query, so that it attends to nothing there. The head may be 1; None for nothing."""
        bias = call.bias
        if bias is None and self.windows == 1 and not self.is_padded:
            return None
        if bias is None:
            bias = precise(call.queries.new_zeros(1, 1, 1, 1))
        bias = precise(bias.detach())
        bias = bias.expand(*bias.shape[:-2], call.query_count, call.key_count)
        while bias.ndim < 4:
            bias = bias[None]
        bias = bias.expand(self.windows, -1, -1, -1)
        if self.is_sorted:
            return bias[0]
        count, filled = self.token_count, len(self.pads) > 0
        # What fills up windows goes to a place behind all others, which is cut off.
        token = torch.full((self.windows * call.key_count,), count, dtype=torch.long)
        token[self.index] = torch.arange(len(self.index)) + self.is_padded
        token = token.view(self.windows, -1).to(bias.device)
        heads = call.heads if filled else bias.shape[1]
        whole = bias.new_full((heads, count + filled, count + filled), -math.inf)
        whole[:, token[:, :, None], token[:, None, :]] = bias.expand(-1, heads, -1, -1).transpose(0, 1)
        if filled:
            self._fill(whole, token, call, bias)
            whole = whole[:, :count, :count].clone()
        if self.is_padded:
            whole[:, 0] = -math.inf
            whole[:, 0, 0] = 0
        return whole

    def _fill(self, whole: torch.Tensor, token: torch.Tensor, call: AttentionCall, bias: torch.Tensor) -> None:
        """The scores of what fills up each window as one: the logarithm of the sum of their exponentials.

        The softmax then gives patches what they get, and the one token what all of these get together.
        """
        is_pad = token == token.new_tensor(self.token_count)
        for window in is_pad.any(1).nonzero().flatten().tolist():
            pads = is_pad[window]
            keys, queries = (precise(part[window].detach()) for part in (call.keys, call.queries))
            scores = queries @ keys[:, pads].mT * call.scale + bias[window][..., pads]
            whole[:, token[window], 0] = scores.logsumexp(-1)

    def _turned(self, part: torch.Tensor) -> torch.Tensor:
        """Windows before heads, or back."""
        return part.transpose(1, 2) if self.has_heads_first else part
