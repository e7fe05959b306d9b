"""The rollout of many images: what :func:`vitviz.attribution.rollout` gives for each, several of one shape at a time.

The attention of a small image is many small products, whose beginnings and ends take as long as themselves.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from vitviz.attention.group import TraceGroup, groups_of
from vitviz.attention.layout import Query
from vitviz.attention.threads import in_threads
from vitviz.attention.token_map import TokenMap
from vitviz.attention.trace import AttentionTrace, Chunks
from vitviz.attribution.exclusion import Exclude
from vitviz.attribution.propagation import VIT_EXPLAIN, Step, normalising, propagate
from vitviz.attribution.rollout import RolloutSetup
from vitviz.attribution.threshold import COPIED_ENTRIES, Fused, in_chunks, kept_in_chunks


def rollouts(
    traces: Sequence[AttentionTrace],
    head_fusion: str = "mean",
    discard_ratio: float = 0.0,
    residual_weight: float = 0.5,
    start_layer: int = 0,
    query: Query | None = None,
    reference: str | None = None,
    exclude: Exclude = None,
) -> list[TokenMap]:
    """:func:`vitviz.attribution.rollout` of every trace, in their order.

    Parameters and errors as there. Where one image alone fills the processor's cache, images are followed one by one.
    """
    parameters = (head_fusion, discard_ratio, residual_weight, start_layer, query, reference, exclude)
    setups = [RolloutSetup.of(trace, *parameters) for trace in traces]
    found: list[TokenMap] = []
    for group in groups_of(setup.trace for setup in setups):
        chosen = setups[len(found) : len(found) + len(group.traces)]
        tokens = [chosen[0].propagated()] if len(chosen) == 1 else _propagated(group, chosen)
        found += [setup.as_map(row) for setup, row in zip(chosen, tokens, strict=True)]
    return found


def _propagated(group: TraceGroup, setups: Sequence[RolloutSetup]) -> torch.Tensor:
    """The rows of a group at the start layer's input, ``"image token"``."""
    first = setups[0]
    rows = torch.stack([setup.row for setup in setups])
    step = _mixing(group, first) if first.mixes_only else _normalising(group, first)
    return propagate(rows, first.active_rows, first.trace.layers, step, first.options)[:, 0]


def _mixing(group: TraceGroup, setup: RolloutSetup) -> Step:
    residual = setup.options.residual_weight

    def step(layer: int, tokens: torch.Tensor, active_rows: slice) -> torch.Tensor:
        # No mean of the heads is formed: every head's weights are multiplied as they are.
        by_head = tokens.repeat_interleave(group.heads, 0)
        total = torch.zeros_like(by_head)
        for rows, weights in group.weights_in_chunks(layer, active_rows):
            total.baddbmm_(by_head[..., rows], weights)
        mean = total.unflatten(0, (-1, group.heads)).mean(1)
        return torch.add(tokens * residual, mean, alpha=1 - residual)

    return step


def _normalising(group: TraceGroup, setup: RolloutSetup) -> Step:
    options, fusion = setup.options, setup.head_fusion
    is_theirs = options.reference == VIT_EXPLAIN

    def remaining(matrix: torch.Tensor) -> torch.Tensor:
        """What discarding leaves of the fused matrix ``"query key"`` of one image."""
        fused = Fused(group.tokens, matrix.dtype, lambda: matrix, lambda: in_chunks(matrix))
        return torch.cat([chunk for _, chunk in kept_in_chunks(fused, options.discard_ratio, is_theirs, is_theirs)])

    def matrices(layer: int, active_rows: slice) -> Chunks:
        if not options.discards and not is_theirs:
            return group.fused_in_chunks(layer, fusion, active_rows)
        # Finding the lowest entries, and their sums, needs all rows.
        whole = group.fused(layer, fusion)
        if options.discards:
            run = in_threads if whole.numel() > COPIED_ENTRIES else map
            whole = torch.stack(list(run(remaining, list(whole))))
        return [(slice(0, group.tokens), whole)]

    return normalising(matrices, options)
