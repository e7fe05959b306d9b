"""Patches that a trained network uses as scratch space: norm outliers and attention sinks.

Darcet et al. 2024, "Vision Transformers Need Registers": trained networks store global information in a few patches of
high norm, which no longer stand for their part of the picture. Xiao et al. 2024, "Efficient Streaming Language Models
with Attention Sinks": softmax must put its weight somewhere, and a few tokens take the attention that nothing else
needs. Outliers and sinks need not be the same patches: small networks often have sinks without outliers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from vitviz.attention.layout import TokenLayout
from vitviz.attention.trace import AttentionTrace
from vitviz.errors.kinds import MethodError

# Darcet et al. put the threshold at 150 in a network whose other norms are about 50. Two bounds are needed: among
# nearly equal norms ten deviations are a tiny distance, and among widely spread ones twice the median is common.
OUTLIER_RATIO = 2.0
OUTLIER_DEVIATIONS = 10.0
# In multiples of a token's share of evenly spread attention.
SINK_RATIO = 10.0
NO_NORMS = "this trace has no token norms; vitviz.analyze measures them"


@dataclass(frozen=True, eq=False)
class OutlierRule:
    """The threshold above which the norm of a patch is an outlier, in one image.

    Args:
        median: median norm of all patches.
        deviation: median absolute deviation from it.
    """

    median: float
    deviation: float

    @classmethod
    def of(cls, norms: torch.Tensor) -> OutlierRule:
        """The rule for the norms of an image's patches, ``"patch"``."""
        median = norms.median()
        return cls(float(median), float((norms - median).abs().median()))

    @property
    def threshold(self) -> float:
        """The larger of twice the median and the median plus ten median absolute deviations."""
        return max(OUTLIER_RATIO * self.median, self.median + OUTLIER_DEVIATIONS * self.deviation)


def norms_of_patches(trace: AttentionTrace) -> torch.Tensor:
    """The norms of the patches as they enter the last layer, ``"patch"``.

    Norms after the last layer would not do: a model that classifies its CLS token computes no patches there.

    Raises:
        MethodError: the trace has no norms.
    """
    if trace.norms is None:
        raise MethodError(f"norms: {NO_NORMS}")
    return trace.norms[-2, trace.layout.prefix_count :]


def outlier_patches(trace: AttentionTrace) -> list[int]:
    """Token indices of the patches that enter the last layer with an outlying norm, by :class:`OutlierRule`.

    Raises:
        MethodError: the trace has no norms.
    """
    norms = norms_of_patches(trace)
    return _patches(norms > OutlierRule.of(norms).threshold, trace.layout)


def outlier_count(trace: AttentionTrace) -> str:
    """The number of outlier patches as the beginning of a sentence: ``"2 of 64 patches are outliers"``."""
    count = len(outlier_patches(trace))
    subject = f"{count} of {trace.layout.patch_count} patches" if count else "No patch"
    return f"{subject} {'is an outlier' if count < 2 else 'are outliers'}"


def received_attention(trace: AttentionTrace, first_query: int = 0) -> torch.Tensor:
    """The attention that each token receives, averaged over the query tokens: ``"layer head key"``.

    The shares of all tokens sum to 1 in each layer and head.

    Args:
        trace: trace of one image.
        first_query: index of the first query token to average over; the number of prefix tokens averages over the
            patches alone.
    """
    rows = slice(first_query, None)
    received = trace.keys.new_zeros(trace.keys.shape[:3], dtype=trace.dtype)
    for layer in range(trace.layers):
        for _, weights in trace.weights_in_chunks(layer, rows):
            received[layer] += weights.sum(1)
    return received.cpu() / (trace.layout.token_count - first_query)


def sink_patches(trace: AttentionTrace) -> list[int]:
    """Token indices of the patches that receive more than ten times their even share of the attention in some layer.

    The received attention is averaged over a layer's heads and over all query tokens.
    """
    layout = trace.layout
    highest = received_attention(trace).mean(1).amax(0)[layout.prefix_count :]
    return _patches(highest * layout.token_count > SINK_RATIO, layout)


def _patches(is_member: torch.Tensor, layout: TokenLayout) -> list[int]:
    return [layout.prefix_count + int(patch) for patch in is_member.nonzero().flatten()]
