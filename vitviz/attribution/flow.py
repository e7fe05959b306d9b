"""Attention flow: the maximum flow from a token of the last layer to every token of the image.

Abnar & Zuidema 2020, "Quantifying Attention Flow in Transformers", section 3.2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch

from vitviz.attention.layout import Query, TokenLayout, layer_range, layer_span
from vitviz.attention.token_map import TokenMap
from vitviz.attention.trace import AttentionTrace
from vitviz.errors.arguments import integer
from vitviz.errors.kinds import MethodError
from vitviz.progress import Progress

if TYPE_CHECKING:
    from scipy.sparse import csr_array

DEFAULT_MAX_CELLS = 64
# scipy takes 32-bit integers as capacities; those of a node sum to this.
NODE_CAPACITY = 2**30


def attention_flow(
    trace: AttentionTrace,
    most_patches: int = DEFAULT_MAX_CELLS,
    start_layer: int = 0,
    query: Query | None = None,
    end_layer: int = -1,
    *,
    report: Callable[[Progress], None] | None = None,
) -> TokenMap:
    """The largest flow that a token of the end layer can send to every token of the start layer's input.

    Tokens of all layers are the nodes of a network, and its edges have the capacities ``rownorm(mean_heads(A) + I)``.
    The maximum flow to each input token is computed separately, so that tokens do not compete; the flows are scaled to
    sum to 1. A network of many patches takes long. Beyond ``most_patches``, neighbours are pooled into cells, and the
    map has a value per cell.

    Args:
        trace: trace of one image.
        most_patches: the most cells; if it is at least the number of patches, nothing is pooled.
        start_layer: lowest layer of the network, counted from 0, or from the end as ``-1``.
        query: the token, as in :func:`vitviz.attribution.attention`; for ``"patches"``, each sends an equal share.
        end_layer: highest layer of the network, counted as ``start_layer``.
        report: receives the number of finished tokens after each one; an exception from it ends the computation.

    Returns:
        Values in [0, 1] that sum to 1 over patches and prefix tokens; the patches of a cell share its value equally.

    Raises:
        QueryError: the model has no such layer or token, or the end layer is below the start layer.
        MethodError: ``most_patches`` is less than 1.
    """
    trace = AttentionTrace.checked(trace)
    most_patches = integer("most_patches", most_patches, 1, MethodError)
    layout, layers = trace.layout, layer_span(start_layer, end_layer, trace.layers)
    query = layout.default_query if query is None else query
    cells, cell_grid = _cells(layout, most_patches)
    cell_sizes = np.bincount(cells)
    network = _network([_capacities(trace, layer, cells) for layer in layers])
    starts = np.unique(cells[layout.select(query)])
    flows = np.zeros(len(cell_sizes))
    for token, flow in enumerate(_flows(network, len(layers), len(cell_sizes), starts)):
        flows[token] = flow
        if report is not None:
            report(Progress(token + 1, len(cell_sizes)))
    shares = torch.from_numpy((flows / flows.sum() / cell_sizes)[cells]).to(trace.dtype)
    grid = f", patches in {cell_grid[0]}×{cell_grid[1]} cells" if len(cell_sizes) < layout.token_count else ""
    description = f"Attention flow for {layout.query_name(query)}: {layer_range(layers.start, layers.stop)}{grid}"
    return TokenMap.of_tokens(shares, layout, "share of the flow", description, (0.0, 1.0))


def _cells(layout: TokenLayout, max_cells: int) -> tuple[np.ndarray, tuple[int, int]]:
    """The node of every token, ``"token"``, and the grid of cells."""
    height, width = layout.grid_height, layout.grid_width
    heights = range(1, min(height, max_cells) + 1)
    grids = ((rows, columns) for rows in heights for columns in range(1, min(width, max_cells // rows) + 1))

    def quality(grid: tuple[int, int]) -> float:
        """Higher for many cells that are nearly square, and doubled if they are all of one size."""
        rows, columns = grid
        stretch = height / rows * columns / width
        is_even = height % rows == width % columns == 0
        return rows * columns * (2 if is_even else 1) / max(stretch, 1 / stretch)

    rows, columns = max(grids, key=quality)
    row, column = np.arange(height) * rows // height, np.arange(width) * columns // width
    patches = (row[:, None] * columns + column).ravel() + layout.prefix_count
    return np.concatenate([np.arange(layout.prefix_count), patches]), (rows, columns)


def _capacities(trace: AttentionTrace, layer: int, cells: np.ndarray) -> np.ndarray:
    """``rownorm(mean_heads(A) + I)`` for cells: the mean over a cell's queries, the sum over a cell's keys."""
    count = int(cells[-1]) + 1
    members = torch.zeros(len(cells), count, dtype=trace.dtype)
    members[torch.arange(len(cells)), torch.from_numpy(cells)] = 1
    total = torch.zeros(count, count, dtype=trace.dtype)
    for rows, chunk in trace.fused_in_chunks(layer):
        total += members[rows].T @ (chunk.detach().cpu() @ members)
    mean = total / members.sum(0)[:, None]
    return ((mean + torch.eye(count, dtype=trace.dtype)) / (mean.sum(-1, keepdim=True) + 1)).numpy()


def _network(capacities: list[np.ndarray]) -> csr_array:
    """All layers' matrices as one graph with nodes ``level · count + token``; level 0 is the lowest layer's input."""
    # Imported here, since it takes a tenth of a second that only this method needs.
    from scipy.sparse import csr_array

    count = len(capacities[0])
    nodes = count * (len(capacities) + 1)
    query, key = (axis.ravel() for axis in np.indices((count, count)))
    tails = np.concatenate([(level + 1) * count + query for level in range(len(capacities))])
    heads = np.concatenate([level * count + key for level in range(len(capacities))])
    units = np.rint(np.concatenate([matrix.ravel() for matrix in capacities]) * NODE_CAPACITY).astype(np.int32)
    # One more node is the source.
    return csr_array((units, (tails, heads)), shape=(nodes + 1, nodes + 1))


def _flows(network: csr_array, layers: int, count: int, starts: np.ndarray) -> Iterator[float]:
    """The maximum flow to every token of the lowest level, as a share of a node's capacity."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_flow

    source = network.shape[0] - 1
    shares = np.full(len(starts), NODE_CAPACITY // len(starts), np.int32)
    edges = csr_array((shares, (np.full(len(starts), source), layers * count + starts)), shape=network.shape)
    network = csr_array(network + edges)
    # Before version 1.15, scipy accepts only 32-bit indices but creates 64-bit ones.
    indices = (array.astype(np.int32) for array in (network.indices, network.indptr))
    network = csr_array((network.data, *indices), shape=network.shape)
    for token in range(count):
        yield maximum_flow(network, source, token, method="dinic").flow_value / NODE_CAPACITY
