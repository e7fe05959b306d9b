"""The rollout of many images: the results of :func:`vitviz.attribution.rollout`, for several of one shape at a time.

The attention of a small image consists of many small products, and a graphics card starts each of them anew.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from vitviz.attention.group import groups_of, joined
from vitviz.attention.layout import Query
from vitviz.attention.softmax import HEAD_FUSIONS, HeadFusion
from vitviz.attention.token_map import TokenMap
from vitviz.attention.trace import AttentionTrace, Chunks
from vitviz.attribution.exclusion import Exclude
from vitviz.attribution.propagation import VIT_EXPLAIN, Reference, normalising_step, propagate
from vitviz.attribution.rollout import RolloutSetup
from vitviz.attribution.threshold import discard


def rollouts(
    traces: Sequence[AttentionTrace],
    head_fusion: HeadFusion = "mean",
    discard_ratio: float = 0.0,
    residual_weight: float = 0.5,
    start_layer: int = 0,
    query: Query | None = None,
    reference: Reference | None = None,
    exclude: Exclude = None,
    end_layer: int = -1,
) -> list[TokenMap]:
    """:func:`vitviz.attribution.rollout` of every trace, in order.

    Parameters and errors as there. On a processor, and where one fills a chunk, images are processed one by one.
    """
    parameters = (head_fusion, discard_ratio, residual_weight, start_layer, query, reference, exclude, end_layer)
    setups = [RolloutSetup.of(trace, *parameters) for trace in traces]
    maps: list[TokenMap] = []
    for group in groups_of(setup.trace for setup in setups):
        batch = setups[len(maps) : len(maps) + len(group)]
        # One wait for a graphics card, not one for each map.
        tokens = [batch[0].propagate()] if len(batch) == 1 else _propagate_group(batch).cpu()
        maps += [setup.as_map(row) for setup, row in zip(batch, tokens, strict=True)]
    return maps


def _propagate_group(setups: Sequence[RolloutSetup]) -> torch.Tensor:
    """The rows of a group at the start layer's input, ``"image token"``."""
    first, trace = setups[0], joined([setup.trace for setup in setups])
    options, fuse, heads = first.options, HEAD_FUSIONS[first.head_fusion], first.trace.heads
    is_vit_explain = options.reference == VIT_EXPLAIN

    def matrices(layer: int, active_rows: slice) -> Chunks:
        chunks = trace.weights_in_chunks(layer, options.rows(active_rows))
        fused = ((rows, fuse(weights.unflatten(0, (-1, heads)), 1)) for rows, weights in chunks)
        if not options.discards:
            return fused
        whole = torch.cat([chunk for _, chunk in fused], 1)
        return discard(whole, options.discard_ratio, is_vit_explain, is_vit_explain)

    rows = torch.stack([setup.start.row for setup in setups])
    return propagate(rows, first.start.active_rows, normalising_step(matrices, options), options)[:, 0]
