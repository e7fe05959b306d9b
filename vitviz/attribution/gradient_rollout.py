"""Gradient rollout: attention rollout along the attention that would raise a score.

A layer's matrix is the positive part of ``mean_heads(A ⊙ ∂y/∂A)``, after Chefer, Gur & Wolf 2021, "Transformer
Interpretability Beyond Attention Visualization", equation 13 with gradients in place of relevance; the product is that
of Abnar & Zuidema 2020, "Quantifying Attention Flow in Transformers", section 3.1.
"""

from __future__ import annotations

import torch

from vitviz.attention.layout import Query
from vitviz.attention.precision import precise
from vitviz.attention.token_map import TokenMap
from vitviz.attention.trace import Chunks
from vitviz.attribution.propagation import (
    VIT_EXPLAIN,
    Reference,
    RolloutOptions,
    as_map,
    has_left,
    normalising_step,
    propagate,
    start_of,
)
from vitviz.attribution.threshold import discard
from vitviz.errors.arguments import instance
from vitviz.models.gradients import GradientTrace


def gradient_rollout(
    gradients: GradientTrace,
    discard_ratio: float = 0.0,
    residual_weight: float = 0.5,
    start_layer: int = 0,
    query: Query | None = None,
    reference: Reference | None = None,
    end_layer: int = -1,
) -> TokenMap:
    """The share of each patch in a token, along the attention that speaks for a class.

    In every layer, ``Â = rownorm((1 - residual_weight) · discard(relu(mean_heads(A ⊙ ∂y/∂A))) + residual_weight ·
    I)``; the map is the token's row of ``Â_end … Â_start``.

    Args:
        gradients: trace of one image and target, from :func:`vitviz.models.gradients.trace_gradients`.
        discard_ratio, residual_weight, start_layer, end_layer, query: as in :func:`vitviz.attribution.rollout`. In a
            model that pools by attention, the default query is the learned one, which takes
            ``relu(mean_heads(A ⊙ ∂y/∂A))`` from the tokens, scaled to sum to 1, with the pooling's ``A``.
        reference: ``"vit-explain"`` reproduces the numbers of jacobgil/vit-explain for attention and gradients of the
            same layers: it divides columns by row sums. That package's own hooks pair those of different layers.

    Returns:
        Values in [0, 1] that sum to 1 over patches and prefix tokens; with ``reference="vit-explain"``, values
        relative to the highest patch. If nothing raises the score, only the query keeps a share (a
        pooling query none), as the caption then says.

    Raises:
        QueryError: the model has no such layer or token, or the end layer is below the start layer.
        MethodError: a parameter is out of range or unknown, or the reference has no such parameter.
    """
    instance("gradients", gradients, GradientTrace, "vitviz.models.gradients.trace_gradients(network, pixels, target)")
    layout, layers = gradients.layout, gradients.span(start_layer, end_layer)
    options = RolloutOptions(discard_ratio, residual_weight, layers, gradients.layers.stop, reference)

    def chunks(layer: int, active_rows: slice) -> Chunks:
        if not options.discards:
            return _steps(gradients, layer, options.rows(active_rows))
        matrix = torch.cat([chunk for _, chunk in _steps(gradients, layer)])
        # Most ties are entries that are zero already, so which of them topk discards does not matter.
        return discard(matrix, options.discard_ratio, as_topk=options.reference == VIT_EXPLAIN)

    pooled, like = gradients.pooled, precise(gradients.keys[0][:0])
    if pooled is not None:
        pooled = pooled.mean(0, keepdim=True).relu().to(like)
        total = pooled.sum()
        pooled = pooled / total.where(total > 0, 1.0)
    start = start_of(layout, query, gradients.default_query, pooled, layers, options.depth, like, reference)
    tokens = propagate(start.row, start.active_rows, normalising_step(chunks, options), options)[0]
    description = f"Gradient rollout of {gradients.target.name} for {start.name}"
    heads = gradients.queries[0].shape[0]
    raised = options.residual_weight == 1 or has_left(tokens, start.active_rows)
    return as_map(tokens, layout, options, description, f"mean of {heads} heads", raised=raised)


def _steps(gradients: GradientTrace, layer: int, rows: slice = slice(None)) -> Chunks:
    """The positive part of a layer's ``mean_heads(A ⊙ ∂y/∂A)``, in chunks of rows."""
    for block, weights, gradient in gradients.in_chunks(layer, rows):
        yield block, gradient.mul_(weights).mean(0).relu_()
