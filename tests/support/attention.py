"""Random attention of several layouts."""

from __future__ import annotations

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
