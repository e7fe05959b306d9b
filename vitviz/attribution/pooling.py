"""What an attention pooling reads: the CLS row of models without a CLS token.

Lee et al. 2019, "Set Transformer", section 3.2, as SigLIP has it (Zhai et al. 2023).
"""

from __future__ import annotations

from vitviz.attention.layout import numbered
from vitviz.attention.softmax import one_head
from vitviz.attention.token_map import TokenMap
from vitviz.attention.trace import AttentionTrace
from vitviz.errors.kinds import MethodError

POOLED = "the pooling query"
NOT_POOLED = "this model does not pool by attention; what it classifies is a token, or a mean"


def pooling_attention(trace: AttentionTrace, head: int | str = "mean") -> TokenMap:
    """What the learned query of the attention pooling takes from every patch of the last layer's output.

    It is no token and in no layer: it asks once, behind the last layer, and what it gets is classified.

    Args:
        trace: of one image, by a model that pools by attention.
        head: of the pooling, counted from 0, or ``"mean"``, ``"max"`` or ``"min"`` over its heads.

    Returns:
        Values in [0, 1]; of one head or their mean they sum to 1.

    Raises:
        MethodError: the model pools otherwise, or there is no such fusion.
        QueryError: the model has no such head.
    """
    if trace.pooled is None:
        raise MethodError(f"pooling_attention: {NOT_POOLED}")
    tokens, which = one_head(trace.pooled, head)
    what = f"Attention from {POOLED} to each patch, after {numbered('layer', trace.layers - 1, trace.layers)}, {which}"
    return TokenMap.of_tokens(tokens, trace.layout, "attention weight", what, (0.0, 1.0))
