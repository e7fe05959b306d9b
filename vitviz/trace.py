"""The attention of one image, kept as queries and keys and recomputed exactly on demand."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from einops import reduce

from vitviz.errors import ConfigError, MethodError, QueryError, choices
from vitviz.layout import Query, TokenLayout

HEAD_FUSIONS = ("mean", "max", "min")


def attention_weights(queries: torch.Tensor, keys: torch.Tensor, scale: float) -> torch.Tensor:
    """Attention weights, the softmax over keys of the scaled scores.

    Vaswani et al. 2017, "Attention Is All You Need", equation 1.

    Args:
        queries: ``"... query dim"``.
        keys: ``"... key dim"``.
        scale: what the scores are multiplied with, usually ``dim ** -0.5``.

    Returns:
        ``"... query key"``; every row sums to 1.
    """
    return (queries @ keys.transpose(-1, -2) * scale).softmax(-1)


def fuse_heads(weights: torch.Tensor, fusion: str) -> torch.Tensor:
    """Many heads as one: ``"head ..."`` to ``"..."`` by mean, max or min.

    Raises:
        MethodError: the fusion is none of these.
    """
    if fusion not in HEAD_FUSIONS:
        raise MethodError(f"head fusion {fusion!r}: expected {choices(HEAD_FUSIONS)}")
    return reduce(weights, "head ... -> ...", fusion)


@dataclass(frozen=True, eq=False)
class AttentionTrace:
    """Queries and keys of every encoder layer for one image.

    Memory grows with the number of tokens, not with its square; any attention row, column or matrix is recomputed
    exactly from it. Shapes of what comes back:

    ============================  ==========================
    ``row(layer, query)``         ``"head key"``
    ``column(layer, key)``        ``"head query"``
    ``rows(query)``               ``"layer head key"``
    ``columns(key)``              ``"layer head query"``
    ``weights(layer)``            ``"head query key"``
    ``fused(layer, fusion)``      ``"query key"``
    ============================  ==========================

    Args:
        queries: ``"layer head token dim"``, as they enter the scaled product.
        keys: ``"layer head token dim"``.
        scale: what the scores are multiplied with before the softmax.
        layout: which token is what.

    Raises:
        ConfigError: the shapes contradict each other or the layout.
    """

    queries: torch.Tensor
    keys: torch.Tensor
    scale: float
    layout: TokenLayout

    def __post_init__(self) -> None:
        if self.queries.shape != self.keys.shape or self.queries.ndim != 4:
            found = f"queries {tuple(self.queries.shape)} and keys {tuple(self.keys.shape)}"
            raise ConfigError(f"{found}: expected one shape, 'layer head token dim'")
        if self.queries.shape[2] != self.layout.token_count:
            raise ConfigError(f"{self.queries.shape[2]} tokens in the trace, {self.layout.token_count} in its layout")

    @property
    def layers(self) -> int:
        return self.queries.shape[0]

    @property
    def heads(self) -> int:
        return self.queries.shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes held by queries and keys."""
        return self.queries.nbytes + self.keys.nbytes

    def layer_index(self, layer: int) -> int:
        """A layer counted from 0, or from the end as ``-1``, as an index from 0.

        Raises:
            QueryError: there is no such layer.
        """
        return _index("layer", layer, self.layers)

    def head_index(self, head: int) -> int:
        """A head counted from 0, or from the end as ``-1``, as an index from 0.

        Raises:
            QueryError: there is no such head.
        """
        return _index("head", head, self.heads)

    def row(self, layer: int, query: Query) -> torch.Tensor:
        """What the query token looks at, in every head: ``"head key"``, each row summing to 1."""
        layer, tokens = self.layer_index(layer), self.layout.select(query)
        return attention_weights(self.queries[layer, :, tokens], self.keys[layer], self.scale).mean(-2)

    def rows(self, query: Query) -> torch.Tensor:
        """What the query token looks at, in every layer and head: ``"layer head key"``, each row summing to 1."""
        return torch.stack([self.row(layer, query) for layer in range(self.layers)])

    def column(self, layer: int, key: Query) -> torch.Tensor:
        """How much every token looks at the key token, in every head: ``"head query"``, values in [0, 1]."""
        layer, tokens = self.layer_index(layer), self.layout.select(key)
        scores = self.queries[layer] @ self.keys[layer].transpose(-1, -2) * self.scale
        return (scores[..., tokens] - scores.logsumexp(-1, keepdim=True)).exp().mean(-1)

    def columns(self, key: Query) -> torch.Tensor:
        """How much every token looks at the key token, in every layer and head: ``"layer head query"``."""
        return torch.stack([self.column(layer, key) for layer in range(self.layers)])

    def weights(self, layer: int) -> torch.Tensor:
        """The attention weights of one layer: ``"head query key"``, each row summing to 1."""
        layer = self.layer_index(layer)
        return attention_weights(self.queries[layer], self.keys[layer], self.scale)

    def fused(self, layer: int, fusion: str = "mean") -> torch.Tensor:
        """The attention weights of one layer with its heads fused: ``"query key"``.

        Raises:
            MethodError: the fusion is not mean, max or min.
        """
        return fuse_heads(self.weights(layer), fusion)


def _index(kind: str, number: int, count: int) -> int:
    if not -count <= number < count:
        raise QueryError(f"{kind} {number}: this model has {kind}s 0 to {count - 1} (or -{count} to -1 from the end)")
    return number % count
