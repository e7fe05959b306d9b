"""Traces with random queries and keys."""

from __future__ import annotations

import torch

from vitviz import AttentionTrace, TokenLayout


def random_trace(dtype: torch.dtype = torch.float64) -> AttentionTrace:
    """Two layers, three heads, five prefix tokens and a 2×3 grid; sharp attention."""
    layout = TokenLayout(("cls", *(f"register {number}" for number in range(1, 5))), 2, 3)
    queries, keys = torch.randn(2, 2, 3, 11, 4, dtype=dtype) * 3
    return AttentionTrace(queries, keys, 0.5, layout)
