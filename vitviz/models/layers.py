"""The parts of a Vision Transformer: attention, its layer, the MLP, attention pooling.

Vaswani et al. 2017, "Attention Is All You Need"; pre-norm as in Dosovitskiy et al. 2021, "An Image is Worth 16x16
Words". Gated MLP: Shazeer 2020, "GLU Variants Improve Transformer". Norm of queries and keys: Dehghani et al. 2023,
"Scaling Vision Transformers to 22 Billion Parameters". Attention pooling: Lee et al. 2019, "Set Transformer", as in
Zhai et al. 2023, "Sigmoid Loss for Language Image Pre-Training".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from torch import nn

from vitviz.attention.precision import precise
from vitviz.attention.softmax import attend, attention_weights
from vitviz.models.activations import activate
from vitviz.models.config import ViTConfig
from vitviz.models.positions import rotate

# The most memory for the hidden features of one chunk of an image's tokens.
MAX_HIDDEN_BYTES = 5 * 2**20


class Activation(nn.Module):
    """The nonlinearity of an MLP, by its name in :data:`vitviz.models.activations.ACTIVATIONS`."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return activate(self.name, values)


class GatedMLP(nn.Module):
    """``"... (2 width)"`` to ``"... width"``: the activated first half times the second."""

    def __init__(self, activation: str) -> None:
        super().__init__()
        self.activation = Activation(activation)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        gate, value = values.chunk(2, -1)
        return self.activation(gate) * value


def make_mlp(config: ViTConfig) -> nn.Sequential:
    """Two linear maps with the activation, or the gate, between them: weights ``0`` and ``2``."""
    activation = GatedMLP(config.activation) if config.gated_mlp else Activation(config.activation)
    hidden = config.mlp_width * (2 if config.gated_mlp else 1)
    return nn.Sequential(nn.Linear(config.width, hidden), activation, nn.Linear(config.mlp_width, config.width))


def mlp_chunk_tokens(config: ViTConfig) -> int:
    """How many tokens of an image an MLP processes at a time.

    Its hidden features are several times as wide as the stream. In one go they would need fresh memory each time, which
    is slow.
    """
    hidden = config.mlp_width * (2 if config.gated_mlp else 1)
    return max(1, MAX_HIDDEN_BYTES // (torch.float32.itemsize * hidden))


class AttentionOutput(NamedTuple):
    """Queries, keys, values and output of attention in one layer: ``"batch head token dim"``.

    ``context`` holds the values weighted by attention, ``log_sums``, ``"batch head token"``, the logarithms of the
    sums of exponentials by which the softmax divided, or None if the kernel did not return them. Both may cover only
    the first tokens.
    """

    queries: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    context: torch.Tensor
    log_sums: torch.Tensor | None


class Attention(nn.Module):
    """Multi-head self-attention that returns its queries, keys and values, too.

    ``fused`` selects torch's fused kernel, the default, or the same sum with materialised weights.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        inner = config.heads * config.head_width
        self.heads = config.heads
        self.fused = True
        self.scale = config.head_width**-0.5 if config.attention_scale is None else config.attention_scale
        self.qkv = nn.Linear(config.width, 3 * inner, bias=config.qkv_bias)
        make_norm = partial(nn.LayerNorm, config.head_width, eps=config.norm_epsilon)
        self.query_norm, self.key_norm = (make_norm() if config.query_key_norm else nn.Identity() for _ in range(2))
        self.projection = nn.Linear(inner, config.width)

    def forward(
        self,
        tokens: torch.Tensor,
        angles: torch.Tensor | None,
        count: int,
        on_chunk: Callable[[], None] | None = None,
    ) -> AttentionOutput:
        """The attention of all tokens, and its output for the first ``count`` of them.

        Args:
            tokens: ``"batch token width"``, normalised.
            angles: angles of rotary positions, ``"patch pair"``.
            count: number of query tokens.
            on_chunk: as in :func:`vitviz.attention.softmax.attend`.
        """
        # In the precision of the linear maps.
        queries, keys, values = self._queries_keys_values(tokens.to(self.qkv.weight.dtype))
        if isinstance(self.query_norm, nn.LayerNorm):
            queries = self.query_norm(precise(queries)).to(values.dtype)
            keys = self.key_norm(precise(keys)).to(values.dtype)
        if angles is not None:
            queries, keys = rotate(queries, angles), rotate(keys, angles)
        active_queries = queries[:, :, :count]
        if self.fused:
            context, log_sums = attend(active_queries, keys, values, self.scale, on_chunk)
        else:
            context, log_sums = attention_weights(active_queries, keys, self.scale).to(values.dtype) @ values, None
        return AttentionOutput(queries, keys, values, context, log_sums)

    def _queries_keys_values(self, tokens: torch.Tensor) -> Iterable[torch.Tensor]:
        if not tokens.is_cpu:
            return rearrange(
                self.qkv(tokens), "batch token (part head dim) -> part batch head token dim", part=3, head=self.heads
            )
        weights, biases = self.qkv.weight.chunk(3), (None,) * 3 if self.qkv.bias is None else self.qkv.bias.chunk(3)
        # Three maps instead of one: blocks of equal size leave no holes in the heap.
        return (
            rearrange(F.linear(tokens, *parameters), "batch token (head dim) -> batch head token dim", head=self.heads)
            for parameters in zip(weights, biases, strict=True)
        )


class EncoderLayer(nn.Module):
    """Pre-norm layer: attention, then an MLP, each added to the stream."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.width, eps=config.norm_epsilon)
        self.attention = Attention(config)
        self.mlp_norm = nn.LayerNorm(config.width, eps=config.norm_epsilon)
        self.mlp = make_mlp(config)
        self.mlp_chunk_tokens = mlp_chunk_tokens(config)

    def forward(
        self,
        tokens: torch.Tensor,
        angles: torch.Tensor | None,
        count: int,
        head_mask: torch.Tensor | None = None,
        record: Callable[[AttentionOutput], None] | None = None,
        on_chunk: Callable[[], None] | None = None,
    ) -> torch.Tensor:
        """The first ``count`` tokens of the layer's output, ``"batch token width"``.

        Args:
            tokens: ``"batch token width"``.
            angles: angles of rotary positions, ``"patch pair"``.
            count: number of output tokens.
            head_mask: ``"head"``, factor of each head's attention weights.
            record: receives the layer's attention.
            on_chunk: as in :func:`vitviz.attention.softmax.attend`.
        """
        attention = self.attend(tokens, angles, count, on_chunk)
        if record is not None:
            record(attention)
        context = attention.context
        # Frees queries, keys and values before the MLP runs.
        del attention
        if head_mask is not None:
            context = (context * rearrange(head_mask, "head -> head 1 1")).to(context.dtype)
        return self.residual_mlp(tokens, context)

    def attend(
        self,
        tokens: torch.Tensor,
        angles: torch.Tensor | None,
        count: int,
        on_chunk: Callable[[], None] | None = None,
    ) -> AttentionOutput:
        """The layer's attention, whose context :meth:`residual_mlp` turns into the layer's output."""
        attention: AttentionOutput = self.attention(self.attention_norm(tokens), angles, count, on_chunk)
        return attention

    def residual_mlp(self, tokens: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        """The layer's output from tokens ``"batch token width"`` and the context ``"batch head token dim"``."""
        context = rearrange(context, "batch head token dim -> batch token (head dim)")
        tokens = tokens[:, : context.shape[1]]
        # A graphics card has its memory at hand, and is fastest in one go.
        count = math.ceil(context.shape[1] / self.mlp_chunk_tokens) if tokens.is_cpu else 1
        if count <= 1:
            return self._residual_mlp(tokens, context)
        if torch.is_grad_enabled():
            chunks = zip(tokens.chunk(count, 1), context.chunk(count, 1), strict=True)
            return torch.cat([self._residual_mlp(*chunk) for chunk in chunks], 1)
        output = torch.empty_like(tokens)
        for chunk in zip(tokens.chunk(count, 1), context.chunk(count, 1), output.chunk(count, 1), strict=True):
            self._residual_mlp(*chunk)
        return output

    def _residual_mlp(
        self, tokens: torch.Tensor, context: torch.Tensor, output: torch.Tensor | None = None
    ) -> torch.Tensor:
        projected = self.attention.projection(context)
        # In place only if nobody needs the projection, and if it has the precision of the stream.
        is_reusable = projected.dtype == tokens.dtype and not torch.is_grad_enabled()
        stream = projected.add_(tokens) if is_reusable else tokens + projected
        hidden = self.mlp_norm(stream).to(self.attention.qkv.weight.dtype)
        return torch.add(stream, self.mlp(hidden), out=output)


class AttentionPooling(nn.Module):
    """The attention of one learned query to the tokens, then an MLP: ``"batch token width"`` to ``"batch width"``."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.probe = nn.Parameter(torch.empty(config.width))
        self.query = nn.Linear(config.width, config.width)
        self.key_value = nn.Linear(config.width, 2 * config.width)
        self.projection = nn.Linear(config.width, config.width)
        self.mlp_norm = nn.LayerNorm(config.width, eps=config.norm_epsilon)
        self.mlp = make_mlp(config)
        nn.init.trunc_normal_(self.probe, std=0.02)

    def forward(self, tokens: torch.Tensor, record: Callable[[AttentionOutput], None] | None = None) -> torch.Tensor:
        """Pool tokens, ``"batch token width"``; ``record`` receives the attention of the one query."""
        attention = self.attend(tokens)
        if record is not None:
            record(attention)
        pooled = self.projection(rearrange(attention.context, "batch head 1 dim -> batch (head dim)"))
        return pooled + self.mlp(self.mlp_norm(pooled))

    def attend(self, tokens: torch.Tensor) -> AttentionOutput:
        """The attention of the learned query, whose queries and context are ``"batch head 1 dim"``."""
        query = repeat(self.query(self.probe), "(head dim) -> batch head 1 dim", head=self.heads, batch=len(tokens))
        keys, values = rearrange(
            self.key_value(tokens), "batch token (part head dim) -> part batch head token dim", part=2, head=self.heads
        )
        return AttentionOutput(query, keys, values, F.scaled_dot_product_attention(query, keys, values), None)

    @staticmethod
    def weights(attention: AttentionOutput) -> torch.Tensor:
        """The attention of the learned query: ``"batch head token"``, each row summing to 1."""
        queries, keys = precise(attention.queries), precise(attention.keys)
        return attention_weights(queries, keys, queries.shape[-1] ** -0.5).squeeze(2)


def module_if(condition: bool, make: Callable[[], nn.Module]) -> Any:
    """A new module if the condition holds, otherwise the identity."""
    return make() if condition else nn.Identity()
