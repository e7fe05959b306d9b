"""One call of attention by a module."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F

from vitviz.attention.precision import precise
from vitviz.errors.kinds import MethodError
from vitviz.models.watched.attention_operations import MIN_WEIGHT


@dataclass(frozen=True, eq=False)
class AttentionCall:
    """The inputs and the output of one call of attention.

    The module's attention is ``softmax(queries · keysᵀ · scale + bias) · values``. Queries and keys enter the product,
    and are recorded, after norms and rotary positions.

    Args:
        queries: ``"window head query dim"``, of each picture one window if it attends globally.
        keys: ``"window head key dim"``.
        values: ``"window head key dim"``, possibly of another dimension.
        scale: factor of the scores.
        bias: added to the scaled scores, broadcast to ``"window head query key"``; None for no bias.
        output: ``softmax(…) · values``, as the module received it.
        number: of the call in its forward pass.
    """

    queries: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    scale: float
    bias: torch.Tensor | None
    output: torch.Tensor
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

    def pictures(self, count: int) -> list[AttentionCall]:
        """The calls of so many pictures that were computed together."""

        def parts(tensor: torch.Tensor | None) -> Sequence[torch.Tensor | None]:
            is_shared = tensor is self.bias and (tensor is None or tensor.ndim < self.queries.ndim or len(tensor) == 1)
            return [tensor] * count if tensor is None or is_shared else tensor.chunk(count)

        names = ("queries", "keys", "values", "bias", "output")
        columns = zip(*(parts(getattr(self, name)) for name in names), strict=True)
        return [replace(self, **dict(zip(names, column, strict=True))) for column in columns]

    def context(self, key_bias: torch.Tensor | None = None) -> torch.Tensor:
        """``softmax(queries · keysᵀ · scale + bias) · values``, recomputed in at least single precision.

        Args:
            key_bias: ``"key"``, added to the scores of each key; None for nothing.
        """
        queries, keys, values = map(precise, (self.queries, self.keys, self.values))
        added = [each.to(queries) for each in (self.bias, key_bias) if each is not None]
        bias = sum(added[1:], added[0]).expand(*queries.shape[:-1], self.key_count) if added else None
        return F.scaled_dot_product_attention(queries, keys, values, attn_mask=bias, scale=self.scale)

    def ablated_output(self, head_mask: torch.Tensor | None, key_bias: torch.Tensor | None) -> torch.Tensor:
        """The output with some heads off and some keys hidden.

        Args:
            head_mask: ``"head"``, factor of each head's output.
            key_bias: ``"key"``, added to the scores of each key.

        Raises:
            MethodError: hardly anything is left of the weights that were read, whose proportions are not exact.
        """
        if key_bias is not None and self.bias is not None:
            scores = precise(self.queries) @ precise(self.keys).mT * self.scale + self.bias
            left = (scores + key_bias.to(scores)).logsumexp(-1) - scores.logsumexp(-1)
            # What a hidden token reads does not matter.
            if bool(((left < math.log(MIN_WEIGHT)) & self.bias.isinf().any(-1) & (key_bias > -math.inf)).any()):
                raise MethodError(
                    f"call {self.number} of attention: the hidden patches have all of a token's attention, so that "
                    "nothing tells where it would go; expected other patches, or fewer"
                )
        output = self.output if key_bias is None else self.context(key_bias).to(self.output)
        return output if head_mask is None else output * head_mask.to(output).view(-1, 1, 1)


def as_bias(mask: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor | None:
    """A mask of ``scaled_dot_product_attention`` as an additive bias: minus infinity for False."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.zeros(mask.shape, dtype=like.dtype, device=like.device).masked_fill_(~mask, -math.inf)


def causal_bias(queries: torch.Tensor, keys: torch.Tensor, rows: slice = slice(None)) -> torch.Tensor:
    """The bias of causal attention of some queries, ``"query key"``."""
    places, others = (torch.arange(each.shape[-2], device=each.device) for each in (queries, keys))
    return queries.new_zeros(len(places[rows]), len(others)).masked_fill_(others > places[rows, None], -math.inf)


def repeat_groups(groups: torch.Tensor, heads: int) -> torch.Tensor:
    """Grouped keys or values ``"… group token dim"``, repeated for each of the heads as ``enable_gqa`` does."""
    count = groups.shape[-3]
    return groups if count == heads else groups.repeat_interleave(heads // count, -3)
