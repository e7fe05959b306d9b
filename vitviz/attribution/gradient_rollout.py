"""Gradient rollout: attention rollout that follows only attention which would raise a score.

The step of a layer is the positive part of ``mean_heads(A ⊙ ∂y/∂A)``, after Chefer, Gur & Wolf 2021, "Transformer
Interpretability Beyond Attention Visualization", equation 13 with gradients in place of relevance; the product is that
of Abnar & Zuidema 2020, "Quantifying Attention Flow in Transformers", section 3.1.
"""

from __future__ import annotations

import torch

from vitviz.attention.layout import Query
from vitviz.attention.precision import precise
from vitviz.attention.token_map import TokenMap
from vitviz.attention.trace import Chunks
from vitviz.attribution.pooling import POOLED
from vitviz.attribution.propagation import EVERY, VIT_EXPLAIN, RolloutOptions, as_map, normalising, propagate, start_row
from vitviz.attribution.threshold import Fused, kept_in_chunks
from vitviz.models.gradients import GradientTrace


def gradient_rollout(
    gradients: GradientTrace,
    discard_ratio: float = 0.0,
    residual_weight: float = 0.5,
    start_layer: int = 0,
    query: Query | None = None,
    reference: str | None = None,
) -> TokenMap:
    """How much of every patch reaches a token along attention that speaks for a class.

    For every layer, ``Â = rownorm((1 - residual_weight) · discard(relu(mean_heads(A ⊙ ∂y/∂A))) + residual_weight ·
    I)``; the map is the token's row of ``Â_last … Â_start``.

    Args:
        gradients: of one image and target, as :func:`vitviz.models.gradients.trace_gradients` gives them.
        discard_ratio, residual_weight, start_layer, query: as :func:`vitviz.attribution.rollout` takes them. Where no
            query is given in a model that pools by attention, its learned query takes ``relu(mean_heads(A ⊙ ∂y/∂A))``
            from the tokens, scaled to sum 1, with the pooling's ``A``.
        reference: ``"vit-explain"`` reproduces the numbers that jacobgil/vit-explain gives for attention and gradients
            of the same layers: it divides columns by row sums. Its own hooks pair those of different layers.

    Returns:
        Values in [0, 1] that sum to 1 over patches and prefix tokens; with ``reference="vit-explain"``, values
        relative to the highest patch. All zero where the pooling query reads nothing that speaks for the class, as the
        caption then says.

    Raises:
        QueryError: the model has no such layer or token.
        MethodError: a parameter is out of range or unknown, or the reference has no such parameter.
    """
    layout, layers = gradients.layout, gradients.layers_from(start_layer)
    options = RolloutOptions(discard_ratio, residual_weight, layers.start, reference)

    def matrix(layer: int, active_rows: slice) -> Chunks:
        if not options.discards and options.reference is None:
            return _steps(gradients, layer, active_rows)
        # Torch's topk has nothing to choose among entries that are zero already, of which there are many.
        fused = Fused(
            layout.token_count,
            precise(gradients.keys[0][:0]).dtype,
            lambda: torch.cat([chunk for _, chunk in _steps(gradients, layer)]),
            lambda: _steps(gradients, layer),
        )
        return kept_in_chunks(fused, options.discard_ratio, as_topk=options.reference == VIT_EXPLAIN)

    pooled = gradients.pooled if query is None else None
    query = gradients.default_query if query is None else query
    row, active_rows = start_row(layout, query, options, precise(gradients.keys[0][:0]))
    query_name = layout.name(query)
    if pooled is not None:
        row, active_rows = pooled.mean(0, keepdim=True).relu().to(row), EVERY
        total = row.sum()
        query_name = POOLED if total > 0 else f"{POOLED}, which reads nothing that speaks for it"
        row = row / total.where(total > 0, 1.0)
    tokens = propagate(row, active_rows, layers.stop, normalising(matrix, options), options)[0]
    what = f"Gradient rollout of {gradients.target.name} for {query_name}"
    heads = gradients.queries[0].shape[0]
    return as_map(tokens, layout, layers.stop, options, what, f"mean of {heads} heads")


def _steps(gradients: GradientTrace, layer: int, rows: slice = slice(None)) -> Chunks:
    """A layer's positive ``mean_heads(A ⊙ ∂y/∂A)``, a few rows at a time."""
    for chosen, weights, gradient in gradients.in_chunks(layer, rows):
        yield chosen, gradient.mul_(weights).mean(0).relu_()
