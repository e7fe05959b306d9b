"""Relevance: attention weighted by how a class depends on it, followed through the layers.

Chefer, Gur & Wolf 2021, "Generic Attention-model Explainability for Interpreting Bi-Modal and Encoder-Decoder
Transformers", equations 5 and 6 (self-attention), known as TransMM.
"""

from __future__ import annotations

import math

from vitviz.gradients import GradientTrace
from vitviz.layout import Query
from vitviz.precision import precise
from vitviz.token_map import TokenMap


def relevance(gradients: GradientTrace, query: Query | None = None) -> TokenMap:
    """How much every patch matters for a class, by attention and its gradient.

    For every layer upwards, ``R ← R + mean_heads(relu(A ⊙ ∂y/∂A)) · R``, from the identity on; the map is the token's
    row of R. It is computed as a chain of row-vector products from the top layer down.

    Args:
        gradients: of one image and class, as :func:`vitviz.gradients.trace_gradients` gives them; the lowest layer
            that is followed is theirs.
        query: the token, as in :func:`vitviz.attribution.attention`.

    Returns:
        Values from 0 up, without a bound.

    Raises:
        QueryError: the model has no such token.
    """
    layout = gradients.layout
    query = layout.reader if query is None else query
    present = layout.select(query)
    tokens = precise(gradients.values[0][:0]).new_zeros(1, layout.token_count)
    tokens[:, present] = 1 / (present.stop - present.start)
    for layer in reversed(gradients.layers):
        passed = tokens.clone()
        for rows, weights, gradient in gradients.in_chunks(layer, present):
            matrix = gradient.relu_().mul_(weights).mean(0)
            passed.addmm_(tokens[:, rows], matrix)
        tokens, present = passed, slice(None)
    layers = f"layers {gradients.start_layer + 1} to {gradients.layers.stop}"
    what = f"Relevance for class {gradients.target + 1} as {layout.name(query)} sees it: {layers}"
    return TokenMap.of_tokens(tokens[0], layout, "relevance", what, (0.0, math.inf))
