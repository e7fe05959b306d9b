"""What determines attention in each layer, and how a score changes with it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from vitviz.attention.layout import PATCHES, Query, TokenLayout, index_from_end
from vitviz.attention.memory import beginning, empty
from vitviz.attention.precision import precise
from vitviz.attention.softmax import weights_in_chunks
from vitviz.errors.kinds import ConfigError
from vitviz.models.targets import Target


@dataclass(frozen=True, eq=False)
class GradientTrace:
    """What determines attention in each layer, and how the score of a class changes with what attention gives.

    Attention gives ``O = A · V``, so the gradient with respect to the attention weights is ``∂y/∂A = ∂y/∂O · Vᵀ``: both
    factors are kept, and their product is formed for a few query tokens at a time.

    Args:
        queries, keys, values: ``"head token dim"`` of every layer from ``start_layer`` on; the dimension of the values
            may be another.
        gradients: of the score with respect to what attention gives, before its projection; of the values' shape.
        log_sums: ``"head token"``, logarithm of the sum that the softmax divides by; None where it is not known.
        scale: what the scores are multiplied with before the softmax.
        layout: which token is what.
        start_layer: the lowest layer that is there.
        target: what was asked about.
        score: what the network gave it.
        pooled: ``"head token"``, of a model that pools by attention: the weights with which its learned query reads
            the last layer's output, each times the score's gradient with respect to it, ``A ⊙ ∂y/∂A``; zero for
            prefix tokens, which it does not read. None where the model pools otherwise.
        biases: ``"head query key"`` of every layer, added to its scaled scores; the head may be 1, for all, and None is
            no bias. Empty for no bias in any layer.

    Raises:
        ConfigError: the layers differ in number or shape, or contradict the layout.
    """

    queries: tuple[torch.Tensor, ...]
    keys: tuple[torch.Tensor, ...]
    values: tuple[torch.Tensor, ...]
    gradients: tuple[torch.Tensor, ...]
    log_sums: tuple[torch.Tensor | None, ...]
    scale: float
    layout: TokenLayout
    start_layer: int
    target: Target
    score: float
    pooled: torch.Tensor | None = None
    biases: tuple[torch.Tensor | None, ...] = ()

    def __post_init__(self) -> None:
        parts = (self.queries, self.keys, self.values, self.gradients)
        if len({len(part) for part in (*parts, self.log_sums)}) != 1 or not self.queries:
            lengths = [len(part) for part in (*parts, self.log_sums)]
            raise ConfigError(f"gradient trace of {lengths} layers: expected as many of each part")
        tokens = self.layout.token_count
        for pair in (parts[:2], parts[2:]):
            shapes = {tuple(tensor.shape) for part in pair for tensor in part}
            if len(shapes) != 1 or next(iter(shapes))[-2] != tokens:
                expected = f"one, 'head token dim' with {tokens} tokens"
                raise ConfigError(f"gradient trace of shapes {sorted(shapes)}: expected {expected}")
        if self.biases and len(self.biases) != len(self.queries):
            raise ConfigError(f"gradient trace with {len(self.biases)} biases: expected one for each of its layers")
        if self.pooled is not None and (self.pooled.ndim != 2 or self.pooled.shape[1] != self.layout.token_count):
            expected = f"'head token' with {self.layout.token_count} tokens"
            raise ConfigError(f"pooled of shape {tuple(self.pooled.shape)}: expected {expected}")

    @property
    def layers(self) -> range:
        """The numbers of the layers that are there."""
        return range(self.start_layer, self.start_layer + len(self.queries))

    @property
    def nbytes(self) -> int:
        """Bytes of queries, keys, values and gradients, and of what is pooled."""
        parts = (self.queries, self.keys, self.values, self.gradients, () if self.pooled is None else (self.pooled,))
        return sum(tensor.nbytes for part in parts for tensor in part)

    @property
    def default_query(self) -> Query:
        """The token that the score is read from: all patches, or that of the layout."""
        return PATCHES if self.target.reads == "patches" else self.layout.default_query

    def layers_from(self, start_layer: int) -> range:
        """The layers that are there, from one on that is counted from 0, or from the end as ``-1``.

        Raises:
            QueryError: the model has no such layer.
        """
        depth = self.layers.stop
        return range(max(index_from_end("layer", start_layer, depth), self.start_layer), depth)

    def in_chunks(self, layer: int, rows: slice = slice(None)) -> Iterator[tuple[slice, torch.Tensor, torch.Tensor]]:
        """Attention weights and the score's gradient with respect to them, a few query tokens at a time.

        Yields:
            Which query tokens, their attention weights and the gradient, both ``"head query key"``, in at most three
            buffers of :data:`vitviz.attention.softmax.CHUNK_BYTES`, which are overwritten when the next are asked for.
        """
        index = self.layers.index(layer)
        queries, keys = precise(self.queries[index]), precise(self.keys[index])
        # Otherwise every product would rearrange them anew.
        values = precise(self.values[index]).transpose(1, 2).contiguous()
        gradients = precise(self.gradients[index])
        bias, buffer = self.biases[index] if self.biases else None, None
        bias = None if bias is None else precise(bias).expand(len(queries), -1, -1)
        log_sums = self.log_sums[index]
        for chosen, weights in weights_in_chunks(queries, keys, self.scale, bias, rows, log_sums):
            if buffer is None:
                buffer = empty(weights.shape, weights)
            gradient = beginning(buffer, weights.shape)
            torch.bmm(gradients[:, chosen], values, out=gradient)
            yield chosen, weights, gradient
