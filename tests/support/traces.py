"""Traces with given attention weights, and the full attention weights of traces."""

from __future__ import annotations

import torch

from vitviz.attention.layout import TokenLayout
from vitviz.attention.trace import AttentionTrace


def trace_of(weights: torch.Tensor, layout: TokenLayout) -> AttentionTrace:
    """A trace with these attention weights, ``"layer head query key"``: the softmax undoes the logarithm."""
    queries = weights.log().clamp(min=-2000)
    return AttentionTrace(queries, torch.eye(weights.shape[-1]).to(queries).expand_as(queries), 1.0, layout)


def scores_of(trace: AttentionTrace) -> torch.Tensor:
    """Attention scores before the softmax, ``"layer head query key"`` in double precision."""
    scores = torch.einsum("lhqd, lhkd -> lhqk", trace.queries.double(), trace.keys.double()) * trace.scale
    return scores if trace.bias is None else scores + trace.bias.double()


def weights_of(trace: AttentionTrace) -> torch.Tensor:
    """Attention weights, ``"layer head query key"`` in double precision."""
    exponentials = (scores_of(trace) - scores_of(trace).amax(-1, keepdim=True)).exp()
    return exponentials / exponentials.sum(-1, keepdim=True)
