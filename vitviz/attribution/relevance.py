"""Relevance: attention weighted by its gradient for a class, propagated through the layers.

Chefer, Gur & Wolf 2021, "Generic Attention-model Explainability for Interpreting Bi-Modal and Encoder-Decoder
Transformers", equations 5 and 6 (self-attention), known as TransMM. An attention pooling counts as one more attention
whose single query starts without relevance.
"""

from __future__ import annotations

import math

from vitviz.attention.layout import Query, layer_range
from vitviz.attention.precision import precise
from vitviz.attention.token_map import TokenMap
from vitviz.attribution.propagation import ALL_ROWS, has_left, start_of
from vitviz.errors.arguments import instance
from vitviz.models.gradients import GradientTrace


def relevance(
    gradients: GradientTrace, query: Query | None = None, start_layer: int = 0, end_layer: int = -1
) -> TokenMap:
    """The relevance of every patch for a class, from attention and its gradient.

    From the lowest layer up, ``R ← R + mean_heads(relu(A ⊙ ∂y/∂A)) · R``, starting with the identity. The map is the
    token's row of R, computed as a chain of row-vector products from the top layer down.

    Args:
        gradients: trace of one image and target, from :func:`vitviz.models.gradients.trace_gradients`.
        query: the token, as in :func:`vitviz.attribution.attention`. In a model that pools by attention, the default
            is the learned query, whose row is ``mean_heads(relu(A ⊙ ∂y/∂A)) · R`` with the pooling's ``A``.
        start_layer: lowest layer to include, from 0, or from the end as ``-1``; none below those of ``gradients``.
        end_layer: highest layer to include, counted as ``start_layer``: the token is one of this layer's output. The
            gradients remain those of the whole model's score.

    Returns:
        Values from 0 up, unbounded.

    Raises:
        QueryError: the model has no such layer or token, or the end layer is below the start layer.
        MethodError: the pooling's learned query is to begin below the last layer.
    """
    instance("gradients", gradients, GradientTrace, "vitviz.models.gradients.trace_gradients(network, pixels, target)")
    layout, layers = gradients.layout, gradients.span(start_layer, end_layer)
    pooled = None if gradients.pooled is None else gradients.pooled.relu().mean(0, keepdim=True)
    like, heads = precise(gradients.values[0][:0]), gradients.queries[0].shape[0]
    tokens, start, name = start_of(layout, query, gradients.default_query, pooled, layers, gradients.layers.stop, like)
    active_rows = start
    for layer in reversed(layers):
        per_head = tokens.new_zeros(heads, *tokens.shape)
        for rows, weights, gradient in gradients.in_chunks(layer, active_rows):
            # Averaging the heads before the product would read all weights once more.
            per_head.baddbmm_(tokens[:, rows].expand(heads, -1, -1), gradient.relu_().mul_(weights))
        tokens, active_rows = tokens + per_head.mean(0), ALL_ROWS
    description = f"Relevance for {gradients.target.name} as {name} sees it: {layer_range(layers.start, layers.stop)}"
    return TokenMap.of_tokens(
        tokens[0], layout, "relevance", description, (0.0, math.inf), raised=has_left(tokens[0], start)
    )
