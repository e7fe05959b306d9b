"""Attention flow: how much could flow from a token of the top down to every token of the image.

Abnar & Zuidema 2020, "Quantifying Attention Flow in Transformers", section 3.2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch

from vitviz.attention.layout import Query, TokenLayout, layer_range
from vitviz.attention.token_map import TokenMap
from vitviz.attention.trace import AttentionTrace
from vitviz.errors.arguments import integer
from vitviz.errors.kinds import MethodError
from vitviz.progress import Progress

if TYPE_CHECKING:
    from scipy.sparse import csr_array

MOST_PATCHES = 64
# scipy takes 32-bit integers as capacities; a node's capacities sum to this.
UNITS = 2**30


def attention_flow(
    trace: AttentionTrace,
    most_patches: int = MOST_PATCHES,
    start_layer: int = 0,
    query: Query | None = None,
    *,
    report: Callable[[Progress], None] | None = None,
) -> TokenMap:
    """The largest flow that a token of the last layer can send to every token of the start layer's input.

    Tokens of all layers are the nodes of a network, and its edges have the capacities ``rownorm(mean_heads(A) + I)``.
    For each input token alone its maximum flow is found; what one gets is not taken from another, so that the flows are
    scaled to sum 1. A network of many patches takes long: beyond ``most_patches`` neighbours are pooled into cells, and
    the map has a value per cell.

    Args:
        trace: of one image.
        most_patches: so many cells at most; with as many as the model has patches nothing is pooled.
        start_layer: lowest layer that is followed, counted from 0, or from the end as ``-1``.
        query: the token, as in :func:`vitviz.attribution.attention`; of ``"patches"`` each sends an equal share.
        report: receives how many tokens have their flow, after each; an exception that it raises ends the computation.

    Returns:
        Values in [0, 1] that sum to 1 over the cells and prefix tokens; every patch has its cell's value divided by
        its patches.

    Raises:
        QueryError: the model has no such layer or token.
        MethodError: fewer than one cell is asked for.
    """
    most_patches = integer("most_patches", most_patches, 1, MethodError)
    layout, layers = trace.layout, range(trace.layer_index(start_layer), trace.layers)
    query = layout.default_query if query is None else query
    cells, pooled = _cells(layout, most_patches)
    sharing = np.bincount(cells)
    network = _network([_capacities(trace, layer, cells) for layer in layers])
    chosen = np.unique(cells[layout.select(query)])
    flows = np.zeros(len(sharing))
    for token, flow in enumerate(_flows(network, len(layers), len(sharing), chosen)):
        flows[token] = flow
        if report is not None:
            report(Progress(token + 1, len(sharing)))
    shares = torch.from_numpy((flows / flows.sum() / sharing)[cells]).to(trace.dtype)
    grid = f", patches in {pooled[0]}×{pooled[1]} cells" if len(sharing) < layout.token_count else ""
    what = f"Attention flow for {layout.name(query)}: {layer_range(layers.start, layers.stop)}{grid}"
    return TokenMap.of_tokens(shares, layout, "share of the flow", what, (0.0, 1.0))


def _cells(layout: TokenLayout, most: int) -> tuple[np.ndarray, tuple[int, int]]:
    """The node of every token, ``"token"``, and the grid of cells."""
    height, width = layout.grid_height, layout.grid_width
    heights = range(1, min(height, most) + 1)
    grids = ((rows, columns) for rows in heights for columns in range(1, min(width, most // rows) + 1))

    def worth(grid: tuple[int, int]) -> float:
        """Many cells, nearly square, and twice as much if they are all of one size."""
        rows, columns = grid
        stretch = height / rows * columns / width
        alike = height % rows == width % columns == 0
        return rows * columns * (2 if alike else 1) / max(stretch, 1 / stretch)

    rows, columns = max(grids, key=worth)
    row, column = np.arange(height) * rows // height, np.arange(width) * columns // width
    patches = (row[:, None] * columns + column).ravel() + layout.prefix_count
    return np.concatenate([np.arange(layout.prefix_count), patches]), (rows, columns)


def _capacities(trace: AttentionTrace, layer: int, cells: np.ndarray) -> np.ndarray:
    """``rownorm(mean_heads(A) + I)`` of the cells: the mean over a cell's queries, the sum over a cell's keys."""
    count = int(cells[-1]) + 1
    members = torch.zeros(len(cells), count, dtype=trace.dtype)
    members[torch.arange(len(cells)), torch.from_numpy(cells)] = 1
    summed = torch.zeros(count, count, dtype=trace.dtype)
    for rows, chunk in trace.fused_in_chunks(layer):
        summed += members[rows].T @ (chunk.cpu() @ members)
    mean = summed / members.sum(0)[:, None]
    return ((mean + torch.eye(count, dtype=trace.dtype)) / (mean.sum(-1, keepdim=True) + 1)).numpy()


def _network(capacities: list[np.ndarray]) -> csr_array:
    """All layers' matrices as one graph: node ``level · count + token``; level 0 is the input of the lowest layer."""
    # The import takes a tenth of a second, which only this method needs.
    from scipy.sparse import csr_array

    count = len(capacities[0])
    nodes = count * (len(capacities) + 1)
    query, key = (axis.ravel() for axis in np.indices((count, count)))
    tails = np.concatenate([(level + 1) * count + query for level in range(len(capacities))])
    heads = np.concatenate([level * count + key for level in range(len(capacities))])
    units = np.rint(np.concatenate([matrix.ravel() for matrix in capacities]) * UNITS).astype(np.int32)
    # One more node, before all tokens, where the flow starts at several.
    return csr_array((units, (tails, heads)), shape=(nodes + 1, nodes + 1))


def _flows(network: csr_array, layers: int, count: int, chosen: np.ndarray) -> Iterator[float]:
    """The largest flow to every token of the lowest level, in parts of what a node can send."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_flow

    top, source = layers * count, network.shape[0] - 1
    if len(chosen) > 1:
        starts = csr_array(
            (np.full(len(chosen), UNITS // len(chosen), np.int32), (np.full(len(chosen), source), top + chosen)),
            shape=network.shape,
        )
        network = csr_array(network + starts)
    else:
        source = top + int(chosen[0])
    # Before version 1.15, scipy accepts only 32-bit indices but creates 64-bit ones.
    places = (part.astype(np.int32) for part in (network.indices, network.indptr))
    network = csr_array((network.data, *places), shape=network.shape)
    for token in range(count):
        yield maximum_flow(network, source, token, method="dinic").flow_value / UNITS
