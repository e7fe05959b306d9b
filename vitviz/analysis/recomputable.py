"""What an analysis holds besides its trace and its picture, and can compute again."""

from __future__ import annotations

from dataclasses import replace

from vitviz.analysis.analysis import Analysis


def kept_bytes(analysis: Analysis) -> int:
    """The bytes that an analysis holds after :func:`drop_recomputable`, without the model."""
    return replace(analysis.trace, keep_bytes=0).nbytes + analysis.prepared.nbytes


def drop_recomputable(analysis: Analysis) -> None:
    """Drop the gradients and the fused attention matrices that an analysis holds; its next map computes them again."""
    analysis._inputs.clear()
    analysis.trace._cached_fused.clear()
