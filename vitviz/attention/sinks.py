"""Patches that a trained network uses for itself: those of outlying norm, and those that take the attention.

Darcet et al. 2024, "Vision Transformers Need Registers": trained networks store global information in a few patches of
high norm, which stand for no part of the picture. Xiao et al. 2024, "Efficient Streaming Language Models with Attention
Sinks": softmax must put its weight somewhere, and a few tokens take what no other has use for. The two need not be the
same patches: small networks often have sinks without outliers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from vitviz.attention.layout import TokenLayout
from vitviz.attention.trace import AttentionTrace
from vitviz.errors.kinds import MethodError

# Darcet et al. draw the line at 150 in a network whose other norms are about 50. Both bounds count: where norms hardly
# differ, some deviations are no distance, and where they spread widely, twice the median is nothing special.
OUTLIER_RATIO = 2.0
OUTLIER_DEVIATIONS = 10.0
# Times the share that every token would have of evenly spread attention.
SINK_RATIO = 10.0
NO_NORMS = "this trace has no token norms; vitviz.analyze measures them"


@dataclass(frozen=True, eq=False)
class OutlierRule:
    """What the norm of a patch must exceed to be an outlier, in one image.

    Args:
        median: of the norms of all patches.
        deviation: the median absolute deviation from it.
    """

    median: float
    deviation: float

    @classmethod
    def of(cls, norms: torch.Tensor) -> OutlierRule:
        """The rule for norms of patches, ``"patch"``."""
        median = norms.median()
        return cls(float(median), float((norms - median).abs().median()))

    @property
    def threshold(self) -> float:
        """Twice the median, and ten median absolute deviations above it: the larger of the two."""
        return max(OUTLIER_RATIO * self.median, self.median + OUTLIER_DEVIATIONS * self.deviation)


def norms_of_patches(trace: AttentionTrace) -> torch.Tensor:
    """The norms of the patches as they enter the last layer, ``"patch"``.

    After the last layer itself, a model that classifies its CLS token has no patches: nobody needs them.

    Raises:
        MethodError: the trace has no norms.
    """
    if trace.norms is None:
        raise MethodError(f"norms: {NO_NORMS}")
    return trace.norms[-2, trace.layout.prefix_count :]


def outlier_patches(trace: AttentionTrace) -> list[int]:
    """Token indices of the patches whose norm is an outlier where they enter the last layer, by :class:`OutlierRule`.

    Raises:
        MethodError: the trace has no norms.
    """
    norms = norms_of_patches(trace)
    return _patches(norms > OutlierRule.of(norms).threshold, trace.layout)


def received_attention(trace: AttentionTrace, first_query: int = 0) -> torch.Tensor:
    """The attention that every token receives, in the mean of the tokens that look: ``"layer head key"``.

    In one layer and head the shares of all tokens sum to 1.

    Args:
        trace: of one image.
        first_query: the first token that counts as looking; the number of prefix tokens for the patches alone.
    """
    rows = slice(first_query, None)
    received = torch.zeros(trace.layers, trace.heads, trace.layout.token_count, dtype=torch.float64)
    for layer in range(trace.layers):
        for _, weights in trace.weights_in_chunks(layer, rows):
            received[layer] += weights.sum(1).to("cpu", torch.float64)
    return received / (trace.layout.token_count - first_query)


def sink_patches(trace: AttentionTrace) -> list[int]:
    """Token indices of the patches that receive ten times their even share of the attention in some layer.

    What counts is the mean over a layer's heads and over all tokens that look.
    """
    layout = trace.layout
    highest = received_attention(trace).mean(1).amax(0)[layout.prefix_count :]
    return _patches(highest * layout.token_count > SINK_RATIO, layout)


def _patches(chosen: torch.Tensor, layout: TokenLayout) -> list[int]:
    return [layout.prefix_count + int(place) for place in chosen.nonzero().flatten()]
