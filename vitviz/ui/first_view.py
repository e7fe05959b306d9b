"""The view with which the page opens: a map that answers the hand."""

from __future__ import annotations

from vitviz.attention.trace import AttentionTrace
from vitviz.ui.state import TOKEN_METHOD, View


def opening_view(trace: AttentionTrace) -> View:
    """Attention of a middle layer from a patch worth asking.

    In the last layers, and in rollout, maps of different patches are nearly the same.
    """
    layer = trace.layers // 2
    return View(method=TOKEN_METHOD, parameters={"layer": layer, "query": _patch_worth_asking(trace, layer)})


def _patch_worth_asking(trace: AttentionTrace, layer: int) -> tuple[int, int]:
    """The patch whose attention to the patches (mean of heads) is farthest from the mean of all patches'."""
    first = trace.layout.prefix_count
    rows = trace.fused(layer)[first:, first:]
    row, column = trace.layout.cell(first + int((rows - rows.mean(0)).norm(dim=1).argmax()))
    return row, column
