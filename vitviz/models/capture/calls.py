"""One call of attention, as a module made it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F

from vitviz.attention.precision import precise
from vitviz.attention.softmax import weights_in_chunks
from vitviz.errors.kinds import ConfigError


def _same(context: torch.Tensor) -> torch.Tensor:
    return context


@dataclass(frozen=True, eq=False)
class AttentionCall:
    """What entered one product of attention, and what the module got from it.

    The module's attention is ``softmax(queries · keysᵀ · scale + bias) · values``: queries and keys are as they enter
    the product, after norms and rotary positions.

    Args:
        queries: ``"batch head query dim"``; other leading dimensions where the module attends inside windows.
        keys: ``"batch head key dim"``.
        values: ``"batch head key dim"``, of which the dimension may be another.
        scale: what the scores are multiplied with.
        bias: added to the scaled scores, broadcast to ``"batch head query key"``; None for none.
        output: what the module got.
        to_output: what the module's function makes of ``softmax(…) · values``, ``"batch head query dim"``: nothing
            else, or its output projection.
        tokens: ``"batch token width"``, what queries, keys and values were projected from; None where that was not
            seen.
        log_sums: ``"batch head query"``, the logarithm of the sum of exponentials that the softmax divided by; None
            where the kernel did not tell it.
    """

    queries: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    scale: float
    bias: torch.Tensor | None
    output: torch.Tensor
    to_output: Callable[[torch.Tensor], torch.Tensor] = _same
    tokens: torch.Tensor | None = None
    log_sums: torch.Tensor | None = None

    def aligned(self, windows: int = 1) -> AttentionCall:
        """The same call with as many leading dimensions for each part: ``"… head token dim"``, of one image at least.

        Args:
            windows: how many sequences of tokens were projected, which one dimension may hold together with the heads.

        Raises:
            ConfigError: the parts do not fit together.
        """
        parts = (self.queries, self.keys, self.values)
        try:
            leading = torch.broadcast_shapes(*(part.shape[:-2] for part in parts))
        except RuntimeError:
            shapes = ", ".join(str(tuple(part.shape)) for part in parts)
            raise ConfigError(
                f"attention of queries, keys and values of shapes {shapes}: expected one of each"
            ) from None
        queries, keys, values = (part.expand(*leading, *part.shape[-2:]) for part in parts)
        found = replace(self, queries=queries, keys=keys, values=values)
        if len(leading) > 1:
            return found
        # One image without a dimension for it, or without one for heads, or windows and heads as one.
        count = leading[0] if leading else 1
        shape = (windows, count // windows) if count % windows == 0 else (1, count)
        bias, to_output = self.bias, self.to_output
        if bias is not None and bias.ndim == 3:
            bias = bias.reshape(*(shape if len(bias) == count else (1, 1)), *bias.shape[-2:])
        return replace(
            found,
            queries=queries.reshape(*shape, *queries.shape[-2:]),
            keys=keys.reshape(*shape, *keys.shape[-2:]),
            values=values.reshape(*shape, *values.shape[-2:]),
            bias=bias,
            to_output=lambda context: to_output(context.reshape(*leading, *context.shape[-2:])),
        )

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
        """How many sequences of tokens attend apart from each other: 1 for global attention of one image."""
        return math.prod(self.queries.shape[:-3])

    def head_bias(self) -> torch.Tensor | None:
        """The bias of the first image, ``"head query key"``, of which the head may be 1 for all."""
        if self.bias is None:
            return None
        bias = self.bias
        while bias.ndim > 3:
            bias = bias[0]
        while bias.ndim < 3:
            bias = bias[None]
        return bias.expand(bias.shape[0], self.query_count, self.key_count)

    def context(self) -> torch.Tensor:
        """``softmax(queries · keysᵀ · scale + bias) · values`` from what is recorded: ``"… head query dim"``.

        In at least single precision, and in memory that does not grow with the square of the tokens.
        """
        parts = [part.flatten(0, -4) if part.ndim > 4 else part for part in (self.queries, self.keys, self.values)]
        queries, keys, values = (precise(part) for part in parts)
        bias = None if self.bias is None else self.bias.expand(*self.queries.shape[:-1], self.key_count)
        bias = None if bias is None else precise(bias.reshape(*queries.shape[:-1], self.key_count))
        context = values.new_empty(*queries.shape[:-1], values.shape[-1])
        for image in range(len(queries)):
            own = None if bias is None else bias[image]
            for rows, weights in weights_in_chunks(queries[image], keys[image], self.scale, own):
                context[image, :, rows] = weights @ values[image]
        return context.view(*self.queries.shape[:-1], values.shape[-1])

    def switched(self, head_mask: torch.Tensor | None, key_bias: torch.Tensor | None) -> torch.Tensor:
        """What the module gets if some heads are silent and some keys are hidden.

        Args:
            head_mask: ``"head"``, what each head's output is multiplied with.
            key_bias: ``"key"``, added to the scores of each key.
        """
        if key_bias is None and self.to_output is _same and head_mask is not None:
            return self.output * head_mask.to(self.output).view(-1, 1, 1)
        bias = self.bias
        if key_bias is not None:
            bias = key_bias.to(self.queries) if bias is None else bias + key_bias.to(bias)
            bias = bias.expand(*self.queries.shape[:-1], self.key_count)
        context = F.scaled_dot_product_attention(self.queries, self.keys, self.values, attn_mask=bias, scale=self.scale)
        if head_mask is not None:
            context = context * head_mask.to(context).view(-1, 1, 1)
        return self.to_output(context)

    def context_gradient(self, gradient: torch.Tensor) -> torch.Tensor:
        """The gradient with respect to ``softmax(…) · values``, ``"batch head query dim"``.

        Args:
            gradient: of a score with respect to the output, of its shape.
        """
        if self.to_output is _same:
            return gradient
        with torch.enable_grad():
            context = torch.zeros(*self.queries.shape[:-1], self.values.shape[-1]).to(gradient).requires_grad_()
            return torch.autograd.grad(self.to_output(context), context, gradient)[0]


def as_bias(mask: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor | None:
    """A mask of scaled_dot_product_attention as numbers that are added: where False, minus infinity."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.zeros(mask.shape, dtype=like.dtype, device=like.device).masked_fill_(~mask, -math.inf)


def causal_bias(queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """The bias of causal attention, ``"query key"``."""
    shape = (queries.shape[-2], keys.shape[-2])
    return torch.full(shape, -math.inf, dtype=queries.dtype, device=queries.device).triu_(1)


def repeated(heads: torch.Tensor, count: int) -> torch.Tensor:
    """Grouped keys or values ``"… head token dim"`` as so many heads, as ``enable_gqa`` repeats them.

    Raises:
        ConfigError: the heads are no multiple of the groups.
    """
    groups = heads.shape[-3]
    if groups == count:
        return heads
    if count % groups:
        raise ConfigError(f"attention of {count} heads with keys of {groups}: expected a multiple")
    return heads.repeat_interleave(count // groups, -3)


def each_window(calls: list[AttentionCall]) -> Iterator[str]:
    """How calls attend, in words, each kind once: ``"64 windows of 49 tokens"``."""
    seen: dict[str, None] = {}
    for call in calls:
        keys = f"{call.query_count} tokens"
        if call.query_count != call.key_count:
            keys = f"{call.query_count} queries to {call.key_count} keys"
        seen[keys if call.windows == 1 else f"{call.windows} windows of {keys}"] = None
    yield from seen
