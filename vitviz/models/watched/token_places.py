"""The places of a call's tokens in the picture, for any order and windows in which the module attends."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F

from vitviz.attention.precision import precise
from vitviz.models.watched.calls import AttentionCall


@dataclass(frozen=True, eq=False)
class TokenPlaces:
    """The mapping from the tokens of a :class:`vitviz.TokenLayout` to those of a layer's call.

    Args:
        index: ``"token"``: each layout token's place among the tokens of the call, window after window.
        windows: number of token sequences that attend separately; 1 for global attention.
        pads: places of the padding tokens, which are all the same.
        is_padded: whether the layout begins with one token that stands for all padding, because windows of this or
            another layer reach beyond the picture. ``index`` leaves this token out.
    """

    index: torch.Tensor
    windows: int = 1
    pads: torch.Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.long))
    is_padded: bool = False

    def sort(self, tensor: torch.Tensor, has_pad_values: bool = False) -> torch.Tensor:
        """``"window head token dim"`` as ``"head token dim"`` in the order of the layout.

        Args:
            tensor: queries, keys, values or gradients of a call.
            has_pad_values: whether the token that stands for all padding takes the values of a padding token. It is
                zero otherwise, so that the scores of this query or key are its bias.
        """
        return self.sort_tokens(tensor.transpose(0, 1).flatten(1, 2), has_pad_values)

    def sort_tokens(self, tensor: torch.Tensor, has_pad_values: bool = False) -> torch.Tensor:
        """``"… token dim"``, window after window, in the order of the layout, as :meth:`sort`."""
        tokens = tensor.index_select(-2, self.index.to(tensor.device))
        if not self.is_padded:
            return tokens
        has_pad = has_pad_values and len(self.pads) > 0
        pad = tensor[..., self.pads[:1].to(tensor.device), :] if has_pad else torch.zeros_like(tensor[..., :1, :])
        return torch.cat([pad, tokens], -2)

    def bias(self, call: AttentionCall) -> torch.Tensor | None:
        """The bias of the scores of a call, ``"head query key"``; None for no bias.

        It is minus infinity outside the query's window, so that it attends to nothing there. The head may be 1. The
        scores of all padding of a window are one: the logarithm of the sum of their exponentials. The softmax then
        gives patches the same weight as before, and the one token the weight of all padding.
        """
        if call.bias is None and self.windows == 1 and not self.is_padded:
            return None
        bias = precise(call.queries.new_zeros(()) if call.bias is None else call.bias.detach())
        bias = bias[(None,) * (4 - bias.ndim)]
        bias = bias.expand(self.windows, call.heads if len(self.pads) else -1, call.query_count, call.key_count)
        windows, heads, query_count, key_count = bias.shape
        matrix = bias.new_full((heads, windows, query_count, windows, key_count), -math.inf)
        matrix.diagonal(dim1=1, dim2=3).copy_(bias.movedim(0, -1))
        matrix = matrix.flatten(3).flatten(1, 2)
        index, pads = self.index.to(matrix.device), self.pads.to(matrix.device)
        found = matrix[:, index[:, None], index]
        if not self.is_padded:
            return found
        found = F.pad(found, (1, 0, 1, 0), value=-math.inf)
        found[:, 0, 0] = 0
        if len(pads):
            queries, keys = (each.detach().transpose(0, 1).flatten(1, 2) for each in (call.queries, call.keys))
            scores = precise(queries[:, index]) @ precise(keys[:, pads]).mT * call.scale
            found[:, 1:, 0] = (scores + matrix[:, index[:, None], pads]).logsumexp(-1)
        return found
