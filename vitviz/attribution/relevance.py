"""Relevance: attention weighted by how a class depends on it, followed through the layers.

Chefer, Gur & Wolf 2021, "Generic Attention-model Explainability for Interpreting Bi-Modal and Encoder-Decoder
Transformers", equations 5 and 6 (self-attention), known as TransMM. Attention pooling is taken as one more attention
with a single query, which has no relevance of its own before.
"""

from __future__ import annotations

import math

from vitviz.attention.layout import Query, layer_range
from vitviz.attention.precision import precise
from vitviz.attention.token_map import TokenMap
from vitviz.attribution.pooling import POOLED
from vitviz.attribution.propagation import EVERY
from vitviz.models.gradients import GradientTrace


def relevance(gradients: GradientTrace, query: Query | None = None, start_layer: int = 0) -> TokenMap:
    """How much every patch matters for a class, by attention and its gradient.

    For every layer upwards, ``R ← R + mean_heads(relu(A ⊙ ∂y/∂A)) · R``, from the identity on; the map is the token's
    row of R. It is computed as a chain of row-vector products from the top layer down.

    Args:
        gradients: of one image and target, as :func:`vitviz.models.gradients.trace_gradients` gives them.
        query: the token, as in :func:`vitviz.attribution.attention`; where it is not given in a model that pools by
            attention, its learned query, whose row is ``mean_heads(relu(A ⊙ ∂y/∂A)) · R`` with the pooling's ``A``.
        start_layer: lowest layer that is followed, of those that are there, counted from 0, or from the end as ``-1``.

    Returns:
        Values from 0 up, without a bound.

    Raises:
        QueryError: the model has no such layer or token.
    """
    layout, layers = gradients.layout, gradients.layers_from(start_layer)
    pooled = gradients.pooled if query is None else None
    query = gradients.default_query if query is None else query
    active_rows, heads = layout.select(query), gradients.queries[0].shape[0]
    tokens = precise(gradients.values[0][:0]).new_zeros(1, layout.token_count)
    tokens[:, active_rows] = 1 / (active_rows.stop - active_rows.start)
    if pooled is not None:
        tokens, active_rows = pooled.relu().mean(0, keepdim=True).to(tokens), EVERY
    for layer in reversed(layers):
        each = tokens.new_zeros(heads, *tokens.shape)
        for rows, weights, gradient in gradients.in_chunks(layer, active_rows):
            # Head by head: averaging first would read all weights once more.
            each.baddbmm_(tokens[:, rows].expand(heads, -1, -1), gradient.relu_().mul_(weights))
        tokens, active_rows = tokens + each.mean(0), EVERY
    followed = layer_range(layers.start, layers.stop)
    query_name = layout.name(query) if pooled is None else POOLED
    what = f"Relevance for {gradients.target.name} as {query_name} sees it: {followed}"
    return TokenMap.of_tokens(tokens[0], layout, "relevance", what, (0.0, math.inf))
