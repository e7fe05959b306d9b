"""One call of attention by a module."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from vitviz.attention.precision import precise
from vitviz.attention.softmax import weights_in_chunks


@dataclass(frozen=True, eq=False)
class AttentionCall:
    """The inputs and the output of one call of attention.

    The module's attention is ``softmax(queries · keysᵀ · scale + bias) · values``. Queries and keys enter the product,
    and are recorded, after norms and rotary positions.

    Args:
        queries: ``"batch head query dim"``; other leading dimensions if the module attends inside windows.
        keys: ``"batch head key dim"``.
        values: ``"batch head key dim"``, possibly of another dimension.
        scale: factor of the scores.
        bias: added to the scaled scores, broadcast to ``"batch head query key"``; None for no bias.
        output: ``softmax(…) · values``, as the module received it.
        log_sums: ``"batch head query"``, logarithm of the sum of exponentials by which the softmax divided; None if the
            kernel did not return it.
        number: of the call in its forward pass.
    """

    queries: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    scale: float
    bias: torch.Tensor | None
    output: torch.Tensor
    log_sums: torch.Tensor | None = None
    number: int = 0

    @property
    def heads(self) -> int:
        return self.queries.shape[-3]

    @property
    def query_count(self) -> int:
        return self.queries.shape[-2]

    @property
    def key_count(self) -> int:
        return self.keys.shape[-2]

    @property
    def windows(self) -> int:
        """Number of token sequences that attend separately: 1 for global attention of one image."""
        return math.prod(self.queries.shape[:-3])

    def head_bias(self) -> torch.Tensor | None:
        """The bias of the first image, ``"head query key"``; None for no bias."""
        if self.bias is None:
            return None
        return self.bias.expand(*self.queries.shape[:-1], self.key_count).flatten(0, -4)[0]

    def context(self) -> torch.Tensor:
        """``softmax(queries · keysᵀ · scale + bias) · values``, recomputed: ``"… head query dim"``.

        The computation takes at least single precision, and memory that does not grow with the square of the tokens.
        """
        queries, keys, values = (
            precise(tensor.flatten(0, -4) if tensor.ndim > 4 else tensor)
            for tensor in (self.queries, self.keys, self.values)
        )
        bias = None if self.bias is None else self.bias.expand(*self.queries.shape[:-1], self.key_count)
        bias = None if bias is None else precise(bias.reshape(*queries.shape[:-1], self.key_count))
        context = values.new_empty(*queries.shape[:-1], values.shape[-1])
        for image in range(len(queries)):
            image_bias = None if bias is None else bias[image]
            for rows, weights in weights_in_chunks(queries[image], keys[image], self.scale, image_bias):
                context[image, :, rows] = weights @ values[image]
        return context.view(*self.queries.shape[:-1], values.shape[-1])

    def ablated_output(self, head_mask: torch.Tensor | None, key_bias: torch.Tensor | None) -> torch.Tensor:
        """The output with some heads off and some keys hidden.

        Args:
            head_mask: ``"head"``, factor of each head's output.
            key_bias: ``"key"``, added to the scores of each key.
        """
        if key_bias is None:
            return self.output if head_mask is None else self.output * head_mask.to(self.output).view(-1, 1, 1)
        bias = key_bias.to(self.queries) if self.bias is None else self.bias + key_bias.to(self.bias)
        bias = bias.expand(*self.queries.shape[:-1], self.key_count)
        context = F.scaled_dot_product_attention(self.queries, self.keys, self.values, attn_mask=bias, scale=self.scale)
        if head_mask is not None:
            context = context * head_mask.to(context).view(-1, 1, 1)
        return context


def as_bias(mask: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor | None:
    """A mask of ``scaled_dot_product_attention`` as an additive bias: minus infinity for False."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.zeros(mask.shape, dtype=like.dtype, device=like.device).masked_fill_(~mask, -math.inf)


def causal_bias(queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """The bias of causal attention, ``"query key"``."""
    shape = (queries.shape[-2], keys.shape[-2])
    return torch.full(shape, -math.inf, dtype=queries.dtype, device=queries.device).triu_(1)


def repeat_groups(groups: torch.Tensor, heads: int) -> torch.Tensor:
    """Grouped keys or values ``"… group token dim"``, repeated for each of the heads as ``enable_gqa`` does."""
    count = groups.shape[-3]
    return groups if count == heads else groups.repeat_interleave(heads // count, -3)
