"""The fewest patches that hold a given share of a token's attention.

Caron et al. 2021, "Emerging Properties in Self-Supervised Vision Transformers", figures 3 and 4 and section 4.2.2.
"""

from __future__ import annotations

import torch

from vitviz.attention.layout import Query
from vitviz.attention.softmax import HeadFusion
from vitviz.attention.token_map import TokenMap
from vitviz.attention.trace import AttentionTrace
from vitviz.attribution.attention import attention
from vitviz.errors.arguments import number
from vitviz.errors.kinds import MethodError


def attention_mass(
    trace: AttentionTrace,
    layer: int = -1,
    head: int | HeadFusion = "mean",
    query: Query | None = None,
    mass: float = 0.6,
) -> TokenMap:
    """The fewest patches that together hold a share of the attention that a token pays to all patches.

    The attention to the patches is scaled to sum to 1 and sorted in ascending order. A patch is inside if the sum up to
    and including it is above ``1 - mass``.

    Args:
        trace: trace of one image.
        layer, head, query: as in :func:`vitviz.attribution.attention`.
        mass: the share, in (0, 1]; the paper takes 0.6.

    Returns:
        1 for the patches inside and 0 for the others; none for prefix tokens.

    Raises:
        QueryError: the model has no such layer, head or token.
        MethodError: the mass is out of range, the fusion is unknown, or no patch gets any attention.
    """
    mass = number("mass", mass, lambda share: 0 < share <= 1, "a number above 0 and at most 1")
    token_map = attention(trace, layer, head, query)
    shares = token_map.values.flatten()
    if shares.sum() <= 0:
        raise MethodError(f"{token_map.description}: no patch gets any of it")
    ascending, order = (shares / shares.sum()).sort(stable=True)
    inside = torch.zeros_like(shares)
    inside[order[ascending.cumsum(0) > 1 - mass]] = 1
    description = f"Where {mass:.0%} of the patches' attention is. {token_map.description}"
    return TokenMap(inside.view_as(token_map.values), {}, "inside or outside", description, (0.0, 1.0))
