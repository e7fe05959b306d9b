"""Attention times the length of what is read: a large weight on a vector near zero changes nothing.

Kobayashi et al. 2020, "Attention is Not Only a Weight: Analyzing Transformers with Vector Norms".
"""

from __future__ import annotations

import math

from vitviz.attention.layout import Query, numbered
from vitviz.attention.softmax import HeadFusion, one_head
from vitviz.attention.token_map import TokenMap
from vitviz.attention.trace import AttentionTrace
from vitviz.attribution.exclusion import Exclude, exclude_tokens
from vitviz.errors.kinds import MethodError


def value_attention(
    trace: AttentionTrace,
    layer: int = -1,
    head: int | HeadFusion = "mean",
    query: Query | None = None,
    exclude: Exclude = None,
) -> TokenMap:
    """The attention weights of one token in one layer, each times the norm of the value that it weights.

    The output of a head is ``Σ_j A[i, j] · v_j``, and a token's part in it has the length ``A[i, j] · ‖v_j‖``.
    Kobayashi et al. take the vectors behind the output projection, which not every watched module shows; here they are
    before it.

    Args:
        trace: trace of one image.
        layer, query, exclude: as in :func:`vitviz.attribution.attention`.
        head: number of the head from 0, or ``"mean"``, ``"max"`` or ``"min"`` over the heads, of the products.

    Returns:
        Values of at least 0.

    Raises:
        QueryError: the model has no such layer, head or token.
        MethodError: the trace has no norms of values, the fusion or exclusion is unknown, or no patch is left.
    """
    trace, exclusion = exclude_tokens(AttentionTrace.checked(trace), exclude)
    if trace.value_norms is None:
        raise MethodError("this trace has no norms of values; vitviz.analyze measures them")
    index, query = trace.layer_index(layer), trace.layout.default_query if query is None else query
    tokens, name = one_head(trace.row(index, query) * trace.value_norms[index], head)
    place = ", ".join(filter(None, [numbered("layer", index, trace.layers), name, exclusion]))
    description = (
        f"What {trace.layout.query_name(query)} reads of each patch: attention times the norm of the value, {place}"
    )
    return TokenMap.of_tokens(tokens, trace.layout, "attention × norm of the value", description, (0.0, math.inf))
