"""The attention of one image, stored as queries and keys and recomputed exactly on demand."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from einops import einsum

from vitviz.attention.layout import Prefix, Query, TokenLayout, index_from_end
from vitviz.attention.memory import to_device, without_neighbours
from vitviz.attention.precision import plain_torch, precise
from vitviz.attention.softmax import (
    HEAD_FUSIONS,
    HeadFusion,
    attention_weights,
    fuse_heads,
    fused_in_chunks,
    scores_in_chunks,
    weights_in_chunks,
)
from vitviz.attention.weights import Attentions, Grid, checked_weights, layout_of, without_keys
from vitviz.caching import cached_property
from vitviz.errors.arguments import instance, named_arguments, word
from vitviz.errors.attributes import AttributeAdvice
from vitviz.errors.kinds import ConfigError, MethodError

Chunks = Iterable[tuple[slice, torch.Tensor]]
_SoftmaxInputs = tuple[torch.Tensor, torch.Tensor, float, torch.Tensor | None, slice, torch.Tensor | None]


@dataclass(frozen=True, eq=False)
class AttentionTrace(AttributeAdvice):
    """Queries and keys of every encoder layer for one image.

    Memory grows with the number of tokens, not with its square. Any attention row, column or matrix is recomputed
    exactly, in single precision at least, whatever the stored precision. Shapes of the results:

    ==================================  ===================================================
    ``row(layer, query)``               ``"head key"``
    ``column(layer, key)``              ``"head query"``
    ``rows(query)``                     ``"layer head key"``
    ``columns(key)``                    ``"layer head query"``
    ``log_sums(layer)``                 ``"head query"``
    ``weights(layer)``                  ``"head query key"``
    ``fused(layer, fusion)``            ``"query key"``
    ``fused_in_chunks(layer, fusion)``  chunks: a slice of query tokens and their ``"query key"``
    ``cached_fused(fusion)``            ``fused`` of every layer, or None if they exceed ``keep_bytes``
    ``propagate_layer(layer, tokens)``  ``"start key"``, from tokens ``"start query"``
    ==================================  ===================================================

    All but ``weights``, ``fused`` and ``cached_fused`` work in two buffers of at most
    :data:`vitviz.attention.softmax.CHUNK_BYTES` each, in addition to their results. ``fused`` and ``cached_fused``
    do so in addition to their matrices, and to another copy of one.

    Args:
        queries, keys: ``"layer head token dim"``, as they enter the scaled product; of any floating type.
        scale: factor of the scores before the softmax.
        layout: order of the tokens.
        bias: ``"layer head query key"``, added to the scaled scores; layer and head may be 1, shared by all.
        known_log_sums: results of :meth:`log_sums` by layer; missing layers are computed on demand and added.
        pooled: ``"head token"``, attention of the learned query of an attention pooling to the last layer's output,
            each row summing to 1; None if the model pools otherwise.
        norms: ``"step token"``, length of every token before the first layer and after each one; NaN for tokens that
            the last layer does not compute. None if they were not measured.
        windows: number of windows in which the patches of each layer attend; empty if all layers attend globally. The
            bias makes a token's attention zero outside its window.
        keep_bytes: size of the cache of fused matrices. It holds all layers of a head fusion or none, and evicts the
            fusion that was used longest ago.
        stored_weights: ``"head query key"`` of every layer, in place of queries and keys, which then have no features.
            Made by :meth:`from_weights`; what is computed from them has a gradient if they have one.
        value_norms: ``"layer head token"``, length of every value; None if they were not measured.

    Raises:
        ConfigError: the shapes contradict each other or the layout.

    >>> analysis.trace.weights(-1).shape
    torch.Size([6, 201, 201])
    """

    queries: torch.Tensor
    keys: torch.Tensor
    scale: float
    layout: TokenLayout
    bias: torch.Tensor | None = None
    known_log_sums: dict[int, torch.Tensor] = field(default_factory=dict, repr=False)
    keep_bytes: int = 0
    pooled: torch.Tensor | None = None
    norms: torch.Tensor | None = None
    windows: tuple[int, ...] = ()
    stored_weights: tuple[torch.Tensor, ...] = field(default=(), repr=False)
    value_norms: torch.Tensor | None = None
    _cached_fused: dict[str, list[torch.Tensor]] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.queries.shape != self.keys.shape or self.queries.ndim != 4:
            shapes = f"queries {tuple(self.queries.shape)} and keys {tuple(self.keys.shape)}"
            raise ConfigError(f"{shapes}: expected one shape, 'layer head token dim'")
        layers, heads, tokens, _ = self.queries.shape
        if tokens != self.layout.token_count:
            raise ConfigError(f"{tokens} tokens in the trace, {self.layout.token_count} in its layout")
        if self.bias is not None:
            legal = [(layer, head, tokens, tokens) for layer in (layers, 1) for head in (heads, 1)]
            if tuple(self.bias.shape) not in legal:
                expected = f"expected 'layer head query key', {legal[0]}; layer and head may be 1"
                raise ConfigError(f"bias of shape {tuple(self.bias.shape)}: {expected}")

    @classmethod
    @named_arguments(ConfigError)
    def from_weights(cls, attentions: Attentions, prefix: Prefix = 1, grid: Grid | None = None) -> AttentionTrace:
        """A trace of attention weights that exist already, such as ``outputs.attentions`` of transformers.

        Every method that needs attention alone takes it, and :meth:`vitviz.Analysis.of` lays it on a picture. The
        weights are not copied. :func:`vitviz.attribution.attention` and :func:`vitviz.attribution.rollout` of them are
        differentiable, so that they can be part of a loss.

        Args:
            attentions: ``"layer head query key"`` of one image, or with its batch of one, ``"layer batch head query
                key"``: a tensor, an array, or a list or tuple of the layers, nearest to the image first; of any
                floating type.
            prefix: the tokens before the patches: their names, or their number, for the CLS token and then registers.
            grid: rows and columns of patches; by default those of a square.

        Raises:
            ConfigError: these are no attention weights of one image (finite, not negative, rows that sum to 1 within
                0.01), the layers differ in shape, or the patches do not fill the grid.
        """
        layers = checked_weights(attentions)
        heads, tokens, _ = layers[0].shape
        layout = layout_of(tokens, prefix, grid)
        no_features = layers[0].detach().new_empty(len(layers), heads, tokens, 0)
        return cls(no_features, no_features, 1.0, layout, stored_weights=layers)

    @classmethod
    def checked(cls, trace: object) -> AttentionTrace:
        """The input of a method.

        Raises:
            ConfigError: it is of another kind, such as attention weights.
        """
        return instance("trace", trace, cls, "analysis.trace or vitviz.AttentionTrace.from_weights(attentions)")

    def __repr__(self) -> str:
        layout = self.layout
        tokens = f"{layout.token_count} tokens ({layout.grid_height}×{layout.grid_width} patches)"
        return f"AttentionTrace({self.layers} layers × {self.heads} heads, {tokens})"

    def __getstate__(self) -> dict[str, Any]:
        parts = {
            name: without_neighbours(value) if isinstance(value, torch.Tensor) else value
            for name, value in self.__dict__.items()
        }
        log_sums = {layer: without_neighbours(sums) for layer, sums in self.known_log_sums.items()}
        stored = tuple(without_neighbours(weights.detach()) for weights in self.stored_weights)
        # Fused matrices would make a pickle many times as large, and can be recomputed.
        return {**parts, "known_log_sums": log_sums, "stored_weights": stored, "_cached_fused": {}}

    @property
    def layers(self) -> int:
        return self.queries.shape[0]

    @property
    def heads(self) -> int:
        return self.queries.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        """The type of all computations, at least single precision."""
        return torch.promote_types(self.queries.dtype, torch.float32)

    @property
    def nbytes(self) -> int:
        """The most bytes that queries, keys, weights, bias, all norms, log-sums and cached matrices can take."""
        logarithms = self.layers * self.heads * self.layout.token_count * self.dtype.itemsize
        return (
            self.queries.nbytes
            + self.keys.nbytes
            + logarithms
            + self._max_cached * self._fusion_bytes
            + sum(
                tensor.nbytes
                for tensor in (self.bias, self.norms, self.value_norms, *self.stored_weights)
                if tensor is not None
            )
        )

    def layer_index(self, layer: int) -> int:
        """The index from 0 of a layer number, which may count from the end as ``-1``.

        Raises:
            QueryError: there is no such layer.
        """
        return index_from_end("layer", layer, self.layers)

    def row(self, layer: int, query: Query) -> torch.Tensor:
        """The attention of the query token, in every head: ``"head key"``, each row summing to 1."""
        tokens = self.layout.select(query)
        sums = [weights.sum(1) for _, weights in self.weights_in_chunks(layer, tokens)]
        return torch.stack(sums).sum(0) / (tokens.stop - tokens.start)

    @plain_torch()
    def rows(self, query: Query) -> torch.Tensor:
        """The attention of the query token, in every layer and head: ``"layer head key"``, each row summing to 1."""
        tokens = self.layout.select(query)
        if tokens.stop - tokens.start > 1 or self.stored_weights:
            return torch.stack([self.row(layer, query) for layer in range(self.layers)])
        # The same product as einsum's, whose path search would take a tenth of the time.
        queries, keys = (
            precise(self.queries[:, :, tokens.start, None]).flatten(0, 1),
            precise(self.keys).mT.flatten(0, 1),
        )
        scores = torch.baddbmm(queries.new_zeros(()), queries, keys, beta=0, alpha=self.scale)
        scores = scores.view(self.layers, self.heads, -1)
        return (scores if self.bias is None else scores + self.bias[:, :, tokens.start]).softmax(-1)

    @plain_torch()
    def column(self, layer: int, key: Query) -> torch.Tensor:
        """The attention that every token pays to the key token, in every head: ``"head query"``, values in [0, 1].

        This takes the product of all queries with one key, and with all keys if :meth:`log_sums` is not cached yet.
        """
        layer, tokens = self.layer_index(layer), self.layout.select(key)
        if tokens.stop - tokens.start > 1 or self.stored_weights:
            return torch.cat([weights[..., tokens].mean(-1) for _, weights in self.weights_in_chunks(layer)], -1)
        scaled_key, bias = precise(self.keys[layer, :, tokens.start]) * self.scale, self._bias(layer)
        scores = einsum(scaled_key, precise(self.queries[layer]), "head dim, head query dim -> head query")
        if bias is not None:
            scores = scores + bias[..., tokens.start]
        return (scores - self.log_sums(layer)).exp()

    def columns(self, key: Query) -> torch.Tensor:
        """The attention that every token pays to the key token, in every layer and head: ``"layer head query"``."""
        return torch.stack([self.column(layer, key) for layer in range(self.layers)])

    def log_sums(self, layer: int) -> torch.Tensor:
        """The logarithm of each row's sum of exponentials, by which the softmax divides: ``"head query"``; cached."""
        layer = self.layer_index(layer)
        if self.stored_weights:
            # Of the weights' logarithms, which take the place of scores.
            return self.weights(layer).sum(-1).log()
        if layer not in self.known_log_sums:
            queries, keys = precise(self.queries[layer]), precise(self.keys[layer])
            chunks = scores_in_chunks(queries, keys, self.scale, self._bias(layer))
            self.known_log_sums[layer] = torch.cat([scores.logsumexp(-1) for _, scores in chunks], -1)
        return self.known_log_sums[layer]

    def weights(self, layer: int) -> torch.Tensor:
        """The attention weights of one layer: ``"head query key"``, each row summing to 1."""
        layer = self.layer_index(layer)
        if self.stored_weights:
            return precise(self.stored_weights[layer])
        return attention_weights(precise(self.queries[layer]), precise(self.keys[layer]), self.scale, self._bias(layer))

    def weights_in_chunks(self, layer: int, rows: slice = slice(None)) -> Iterator[tuple[slice, torch.Tensor]]:
        """As :meth:`weights`, in chunks: query tokens and their ``"head query key"``, which the next overwrites.

        Read-only.
        """
        if self.stored_weights:
            start, end, _ = rows.indices(self.layout.token_count)
            return iter([(slice(start, end), self.weights(layer)[:, start:end])])
        return weights_in_chunks(*self._softmax_inputs(self.layer_index(layer), rows))

    def fused(self, layer: int, fusion: HeadFusion = "mean") -> torch.Tensor:
        """The attention weights of one layer with its heads fused: ``"query key"``. Read-only.

        Raises:
            MethodError: the fusion is not mean, max or min.
        """
        layer, matrices = self.layer_index(layer), self.cached_fused(fusion)
        return self._fuse(layer, fusion) if matrices is None else matrices[layer]

    def fused_in_chunks(self, layer: int, fusion: HeadFusion = "mean", rows: slice = slice(None)) -> Chunks:
        """As :meth:`fused`, in chunks: a slice of query tokens and their ``"query key"``. Read-only.

        Raises:
            MethodError: the fusion is not mean, max or min.
        """
        layer, matrices = self.layer_index(layer), self.cached_fused(fusion)
        if matrices is None:
            return self._fused_chunks(layer, fusion, rows)
        start, end, _ = rows.indices(self.layout.token_count)
        return [(slice(start, end), matrices[layer][start:end])]

    def cached_fused(self, fusion: HeadFusion = "mean") -> Sequence[torch.Tensor] | None:
        """:meth:`fused` of every layer, computed once; None if they do not fit into ``keep_bytes``.

        Raises:
            MethodError: the fusion is not mean, max or min.
        """
        word("head fusion", fusion, HEAD_FUSIONS)
        if not self._max_cached:
            return None
        matrices = self._cached_fused.pop(fusion, None)
        if matrices is None:
            # The dictionary is ordered by use; evict before allocating.
            for oldest in list(self._cached_fused)[: len(self._cached_fused) + 1 - self._max_cached]:
                self._cached_fused.pop(oldest, None)
            matrices = [self._fuse(layer, fusion) for layer in range(self.layers)]
        self._cached_fused[fusion] = matrices
        return matrices

    def propagate_layer(self, layer: int, tokens: torch.Tensor, rows: slice = slice(None)) -> torch.Tensor:
        """``tokens[:, rows] @ fused(layer)[rows]`` for tokens ``"start query"``: ``"start key"``.

        A single start is multiplied with each head's weights, which saves the fused matrix.
        """
        if len(tokens) > 1 or self._max_cached:
            total = tokens.new_zeros(len(tokens), self.layout.token_count)
            for block, chunk in self.fused_in_chunks(layer, "mean", rows):
                total.addmm_(tokens[:, block], chunk)
            return total
        per_head = tokens.new_zeros(self.heads, 1, self.layout.token_count)
        for block, weights in self.weights_in_chunks(layer, rows):
            per_head.baddbmm_(tokens[:, block].expand(self.heads, -1, -1), weights)
        return per_head.mean(0)

    def without(self, tokens: Collection[int]) -> AttentionTrace:
        """The same attention with some keys left out: no token attends to them, and every row sums to 1 again.

        The result shares queries and keys with this trace and caches no matrices.

        Args:
            tokens: indices of the keys to leave out.

        Raises:
            MethodError: no key would be left.
        """
        # Made on the processor, since a graphics card would have to be waited for.
        excluded = torch.zeros(self.layout.token_count, dtype=torch.bool)
        excluded[list(tokens)] = True
        if excluded.all():
            raise MethodError(f"all {len(excluded)} tokens left out: expected at least one that is attended to")
        excluded = to_device([excluded], self.keys.device)
        if self.stored_weights:
            layers = (without_keys(self.weights(layer), excluded, layer, self.layout) for layer in range(self.layers))
            return replace(self, stored_weights=tuple(layers))
        mask = torch.zeros(len(excluded), dtype=self.dtype, device=self.keys.device).masked_fill(excluded, -math.inf)
        # One row, expanded over the queries without memory of its own.
        bias = mask.expand(1, 1, len(excluded), -1) if self.bias is None else self.bias + mask
        pooled = self.pooled
        if pooled is not None:
            pooled = pooled.masked_fill(excluded, 0)
            if not pooled.sum(-1).all():
                raise MethodError("the pooling query attends to the tokens alone that are left out: nothing remains")
            pooled = pooled / pooled.sum(-1, keepdim=True)
        return replace(self, bias=bias, pooled=pooled, known_log_sums={}, keep_bytes=0)

    def _fuse(self, layer: int, fusion: HeadFusion) -> torch.Tensor:
        return torch.cat([chunk for _, chunk in self._fused_chunks(layer, fusion, slice(None))])

    def _fused_chunks(self, layer: int, fusion: HeadFusion, rows: slice) -> Chunks:
        if self.stored_weights:
            return ((block, fuse_heads(weights, fusion)) for block, weights in self.weights_in_chunks(layer, rows))
        return fused_in_chunks(fusion, *self._softmax_inputs(layer, rows))

    @property
    def _fusion_bytes(self) -> int:
        return self.layers * self.layout.token_count**2 * self.dtype.itemsize

    @cached_property
    def _max_cached(self) -> int:
        return min(self.keep_bytes // self._fusion_bytes, len(HEAD_FUSIONS))

    def _softmax_inputs(self, layer: int, rows: slice = slice(None)) -> _SoftmaxInputs:
        """The arguments of the functions in :mod:`vitviz.attention.softmax` for one layer."""
        queries, keys = precise(self.queries[layer]), precise(self.keys[layer])
        return queries, keys, self.scale, self._bias(layer), rows, self.known_log_sums.get(layer)

    def _bias(self, layer: int) -> torch.Tensor | None:
        """The bias of one layer, ``"head query key"``."""
        if self.bias is None:
            return None
        return precise(self.bias[layer if len(self.bias) > 1 else 0]).expand(self.heads, -1, -1)
