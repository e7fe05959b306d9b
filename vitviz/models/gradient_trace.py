"""The attention of each layer and the gradient of a score with respect to it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from vitviz.attention.layout import PATCHES, Query, TokenLayout, layer_span
from vitviz.attention.memory import buffer_view, empty
from vitviz.attention.precision import precise
from vitviz.attention.softmax import weights_in_chunks
from vitviz.models.targets import Target


@dataclass(frozen=True, eq=False)
class GradientTrace:
    """The factors of each layer's attention weights and of a score's gradient with respect to them.

    The output of attention is ``O = A · V``, so the gradient with respect to the attention weights is
    ``∂y/∂A = ∂y/∂O · Vᵀ``. The trace stores both factors and multiplies them in chunks of query tokens.

    Args:
        queries, keys, values: ``"head token dim"`` of every layer from ``start_layer`` on; values may have another
            dimension.
        gradients: of the score with respect to the output of attention, before its projection; in the values' shape.
        log_sums: ``"head token"``, logarithm of the sum by which the softmax divides; None if unknown.
        scale: factor of the scores before the softmax.
        layout: order of the tokens.
        start_layer: the lowest layer in the trace.
        target: the score that was differentiated.
        score: its value for the image.
        pooled: ``"head token"``, for a model that pools by attention: ``A ⊙ ∂y/∂A``, the weights with which its learned
            query reads the last layer's output, times the score's gradient with respect to them; zero for prefix
            tokens, which it does not read. None if the model pools otherwise.
        biases: ``"head query key"`` of every layer, added to its scaled scores, or None; the head may be 1, shared by
            all. Empty if no layer has a bias.
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

    @property
    def layers(self) -> range:
        """The numbers of the layers in the trace."""
        return range(self.start_layer, self.start_layer + len(self.queries))

    @property
    def default_query(self) -> Query:
        """The token from which the score is read: all patches, or the default of the layout."""
        return PATCHES if self.target.reads == "patches" else self.layout.default_query

    def span(self, start_layer: int, end_layer: int = -1) -> range:
        """The layers of the trace from ``start_layer`` to ``end_layer``, as :func:`vitviz.attention.layout.layer_span`.

        Raises:
            QueryError: the model has no such layer, or the end is below the start.
        """
        return layer_span(start_layer, end_layer, self.layers.stop, self.start_layer)

    def in_chunks(self, layer: int, rows: slice = slice(None)) -> Iterator[tuple[slice, torch.Tensor, torch.Tensor]]:
        """Attention weights and the score's gradient with respect to them, in chunks of query tokens.

        Yields:
            Each chunk's slice of query tokens, their attention weights and the gradient, both ``"head query key"``. The
            next chunk overwrites them. They take at most three buffers of
            :data:`vitviz.attention.softmax.CHUNK_BYTES`.
        """
        index = self.layers.index(layer)
        queries, keys = precise(self.queries[index]), precise(self.keys[index])
        # Rearranged once; otherwise every product would do it.
        values = precise(self.values[index]).transpose(1, 2).contiguous()
        gradients = precise(self.gradients[index])
        bias, buffer = self.biases[index] if self.biases else None, None
        bias = None if bias is None else precise(bias).expand(len(queries), -1, -1)
        for block, weights in weights_in_chunks(queries, keys, self.scale, bias, rows, self.log_sums[index]):
            if buffer is None:
                buffer = empty(weights.shape, weights)
            gradient = buffer_view(buffer, weights.shape)
            torch.bmm(gradients[:, block], values, out=gradient)
            yield block, weights, gradient
