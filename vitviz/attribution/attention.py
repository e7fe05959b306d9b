"""Raw attention: the tokens to which a token attends, and those that attend to it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, get_args

import torch

from vitviz.attention.layout import Query, TokenLayout, indices_from_end, numbered
from vitviz.attention.softmax import HeadFusion, one_head
from vitviz.attention.token_map import TokenMap
from vitviz.attention.trace import AttentionTrace
from vitviz.attribution.exclusion import Exclude, exclude_tokens
from vitviz.errors.arguments import word

Direction = Literal["row", "column"]
DIRECTIONS: tuple[Direction, ...] = get_args(Direction)


def attention(
    trace: AttentionTrace,
    layer: int = -1,
    head: int | HeadFusion = "mean",
    query: Query | None = None,
    direction: Direction = "row",
    exclude: Exclude = None,
) -> TokenMap:
    """The attention weights of one token in one layer.

    Vaswani et al. 2017, "Attention Is All You Need", equation 1.

    Args:
        trace: trace of one image.
        layer: number of the layer from 0, or from the end as ``-1``.
        head: number of the head from 0, or ``"mean"``, ``"max"`` or ``"min"`` over the heads.
        query: the token: ``"cls"``, ``"register 1"``, a patch's ``(row, column)``, ``"patches"`` for the mean of all
            patches (taken before the heads are fused), or a token index. The default is the CLS token, or all patches
            in a model without one.
        direction: ``"row"`` for the token's attention to every token (for one head or the mean of heads it sums to 1
            over patches and prefix tokens), ``"column"`` for the attention that every token pays to it.
        exclude: tokens to which no token may attend: their weights are set to zero, and every row is divided by its
            sum. ``"outliers"`` are the patches of :func:`vitviz.attention.sinks.outlier_patches`, ``"sinks"`` those of
            :func:`vitviz.attention.sinks.sink_patches`; or a list of tokens, each in the form of ``query``.

    Returns:
        Values in [0, 1].

    Raises:
        QueryError: the model has no such layer, head or token.
        MethodError: the fusion, direction or exclusion is unknown, or no patch is left.
    """
    trace, exclusion = exclude_tokens(AttentionTrace.checked(trace), exclude)
    heads = _heads(trace, layer, query, direction)
    tokens, head_name = one_head(heads, head)
    return _map(tokens, trace, layer, head_name, query, direction, exclusion)


def attention_sheet(
    trace: AttentionTrace,
    query: Query | None = None,
    direction: Direction = "row",
    layers: Iterable[int] | None = None,
    heads: Iterable[int] | None = None,
) -> list[list[TokenMap]]:
    """The attention weights of one token in every layer (outer list) and head (inner list).

    Parameters, values and errors as in :func:`attention`, except:

    Args:
        layers, heads: numbers of those to include, in this order, from 0, or from the end as ``-1``; None for all.
    """
    trace = AttentionTrace.checked(trace)
    rows, columns = indices_from_end("layer", layers, trace.layers), indices_from_end("head", heads, trace.heads)
    weights = torch.stack([_heads(trace, layer, query, direction)[columns] for layer in rows]).cpu()
    return [
        [
            _map(weights[row, column], trace, layer, f"head {head}", query, direction)
            for column, head in enumerate(columns)
        ]
        for row, layer in enumerate(rows)
    ]


def attention_subject(layout: TokenLayout, query: Query | None = None, direction: Direction = "row") -> str:
    """Whose attention a map shows, as its caption begins."""
    name = layout.query_name(layout.default_query if query is None else query)
    return f"Attention from {name} to each patch" if direction == "row" else f"Attention each patch pays to {name}"


def _heads(trace: AttentionTrace, layer: int, query: Query | None, direction: Direction) -> torch.Tensor:
    """The weights in one layer, ``"head token"``."""
    word("direction", direction, DIRECTIONS)
    query = trace.layout.default_query if query is None else query
    return trace.row(layer, query) if direction == "row" else trace.column(layer, query)


def _map(
    tokens: torch.Tensor,
    trace: AttentionTrace,
    layer: int,
    head_name: str,
    query: Query | None,
    direction: Direction,
    exclusion: str = "",
) -> TokenMap:
    layer = trace.layer_index(layer)
    place = f"{numbered('layer', layer, trace.layers)}, {head_name}"
    grid = f"{trace.layout.grid_height}×{trace.layout.grid_width} grid"
    window = f"within its window of the {grid}" if trace.windows and trace.windows[layer] > 1 else ""
    description = ", ".join(filter(None, [attention_subject(trace.layout, query, direction), place, window, exclusion]))
    return TokenMap.of_tokens(tokens, trace.layout, "attention weight", description, (0.0, 1.0))
