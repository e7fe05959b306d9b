"""Random attention of several layouts, and the slow rollout of any."""

from __future__ import annotations

import math

import numpy as np
import torch

from vitviz import TokenLayout

LAYOUTS = {
    "CLS": TokenLayout(("cls",), 3, 3),
    "five prefix tokens": TokenLayout(("cls", "register 1", "register 2", "register 3", "register 4"), 2, 3),
    "distillation": TokenLayout(("cls", "distillation"), 4, 2),
    "no CLS": TokenLayout((), 2, 5),
}


def random_attention(layout: TokenLayout, layers: int = 4, heads: int = 3) -> torch.Tensor:
    scores = torch.randn(layers, heads, layout.token_count, layout.token_count, dtype=torch.float64)
    return (2 * scores).softmax(-1)


def masked(attention: np.ndarray, excluded: list[int]) -> np.ndarray:
    """``"layer head query key"`` with the columns of some keys set to zero and every row divided by its sum."""
    kept = attention.copy()
    kept[..., excluded] = 0
    return kept / kept.sum(-1, keepdims=True)


def slow_rollout(attention: np.ndarray, fusion: str, ratio: float, residual: float = 0.5) -> np.ndarray:
    """``Â_last … Â_first`` of ``"layer head query key"``, with ``Â = rownorm((1 - α) · discard(fuse(A)) + α · I)``."""
    tokens = attention.shape[-1]
    matrix = np.eye(tokens)
    for layer in attention:
        kept = without_lowest(torch.from_numpy(getattr(layer, fusion)(0)), math.floor(tokens * tokens * ratio)).numpy()
        step = (1 - residual) * kept + residual * np.eye(tokens)
        sums = step.sum(1, keepdims=True)
        # An empty row passes its token on unchanged.
        matrix = np.where(sums > 0, step / np.where(sums > 0, sums, 1), np.eye(tokens)) @ matrix
    return matrix


def without_lowest(matrix: torch.Tensor, count: int) -> torch.Tensor:
    """By definition: sort all entries stably in reading order, and zero the lowest."""
    entries = matrix.flatten().numpy().copy()
    entries[np.argsort(entries, kind="stable")[:count]] = 0
    return torch.from_numpy(entries.reshape(matrix.shape))
