"""One call of attention by a module."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F

from vitviz.attention.precision import precise
from vitviz.attention.softmax import weights_in_chunks
from vitviz.errors.kinds import ConfigError


def _identity(context: torch.Tensor) -> torch.Tensor:
    return context


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
        output: result that the module received.
        to_output: maps ``softmax(…) · values``, ``"batch head query dim"``, to the output: the identity, or the output
            projection.
        tokens: ``"batch token width"``, from which queries, keys and values were projected; None if not observed.
        log_sums: ``"batch head query"``, logarithm of the sum of exponentials by which the softmax divided; None if the
            kernel did not return it.
        parts: numbers of the calls whose heads a module joined to this one; empty for a call of its own.
        number: of the call in its forward pass.
    """

    queries: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    scale: float
    bias: torch.Tensor | None
    output: torch.Tensor
    to_output: Callable[[torch.Tensor], torch.Tensor] = _identity
    tokens: torch.Tensor | None = None
    log_sums: torch.Tensor | None = None
    parts: tuple[int, ...] = ()
    number: int = 0

    def aligned(self, windows: int = 1) -> AttentionCall:
        """The same call with the same two or more leading dimensions everywhere: ``"… head token dim"``.

        Args:
            windows: number of projected sequences of tokens, which may share a dimension with the heads.

        Raises:
            ConfigError: queries, keys and values do not fit together.
        """
        tensors = (self.queries, self.keys, self.values)
        try:
            leading = torch.broadcast_shapes(*(tensor.shape[:-2] for tensor in tensors))
        except RuntimeError:
            shapes = ", ".join(str(tuple(tensor.shape)) for tensor in tensors)
            raise ConfigError(
                f"attention of queries, keys and values of shapes {shapes}: expected one of each"
            ) from None
        queries, keys, values = (tensor.expand(*leading, *tensor.shape[-2:]) for tensor in tensors)
        call = replace(self, queries=queries, keys=keys, values=values)
        if len(leading) > 1:
            return call
        # The batch or head dimension is missing, or windows and heads share one.
        count = leading[0] if leading else 1
        shape = (windows, count // windows) if count % windows == 0 else (1, count)
        bias, to_output = self.bias, self.to_output
        if bias is not None and bias.ndim == 3:
            bias = bias.reshape(*(shape if len(bias) == count else (1, 1)), *bias.shape[-2:])
        return replace(
            call,
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
        if key_bias is None and self.to_output is _identity and head_mask is not None:
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
            gradient: gradient of a score with respect to the output, in its shape.
        """
        if self.to_output is _identity:
            return gradient
        with torch.enable_grad():
            context = torch.zeros(*self.queries.shape[:-1], self.values.shape[-1]).to(gradient).requires_grad_()
            return torch.autograd.grad(self.to_output(context), context, gradient)[0]


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
    """Grouped keys or values ``"… group token dim"``, repeated for each of the heads as ``enable_gqa`` does.

    Raises:
        ConfigError: the number of heads is not a multiple of the groups.
    """
    count = groups.shape[-3]
    if count == heads:
        return groups
    if heads % count:
        raise ConfigError(f"attention of {heads} heads with keys of {count}: expected a multiple")
    return groups.repeat_interleave(heads // count, -3)
