"""The attention of an attention pooling, which takes the place of the CLS token's.

Lee et al. 2019, "Set Transformer", section 3.2, as in SigLIP (Zhai et al. 2023).
"""

from __future__ import annotations

from vitviz.attention.layout import numbered
from vitviz.attention.softmax import HeadFusion, one_head
from vitviz.attention.token_map import TokenMap
from vitviz.attention.trace import AttentionTrace
from vitviz.errors.kinds import MethodError

POOLING_QUERY = "the pooling query"
NO_ATTENTION_POOLING = "this model does not pool by attention; what it classifies is a token, or a mean"


def pooling_attention(trace: AttentionTrace, head: int | HeadFusion = "mean") -> TokenMap:
    """The attention of the pooling's learned query to each patch of the last layer's output.

    The query is not a token. It attends once, after the last layer, and the result is classified.

    Args:
        trace: trace of one image by a model that pools by attention.
        head: number of the pooling's head from 0, or ``"mean"``, ``"max"`` or ``"min"`` over its heads.

    Returns:
        Values in [0, 1] that sum to 1 for one head or the mean of heads.

    Raises:
        MethodError: the model pools otherwise, or there is no such fusion.
        QueryError: the model has no such head.
    """
    trace = AttentionTrace.checked(trace)
    if trace.pooled is None:
        raise MethodError(f"pooling_attention: {NO_ATTENTION_POOLING}")
    tokens, head_name = one_head(trace.pooled, head)
    layer = numbered("layer", trace.layers - 1, trace.layers)
    description = f"Attention from {POOLING_QUERY} to each patch, after {layer}, {head_name}"
    return TokenMap.of_tokens(tokens, trace.layout, "attention weight", description, (0.0, 1.0))
