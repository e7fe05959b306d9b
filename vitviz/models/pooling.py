"""From the tokens of the last layer to the features that are classified."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from einops import reduce

from vitviz.attention.layout import TokenLayout

Output = Literal["logits", "features", "patches"]
"""What :meth:`vitviz.VisionTransformer.read` can compute from the last layer's tokens."""


@dataclass(frozen=True)
class Pooling:
    """One way to pool.

    Args:
        required_prefix: prefix tokens that it reads.
        prefix_only: whether it reads nothing else.
        width_factor: width of its features in widths of a token.
        pool: ``"batch token width"`` to ``"batch (width_factor width)"``; None if it has weights of its own.
    """

    required_prefix: tuple[str, ...]
    prefix_only: bool
    width_factor: int
    pool: Callable[[torch.Tensor, TokenLayout], torch.Tensor] | None

    def tokens_read(self, layout: TokenLayout) -> int:
        """How many of the first tokens it reads. The last layer need not compute the others."""
        return max(map(layout.index, self.required_prefix)) + 1 if self.prefix_only else layout.token_count


def _token(name: str) -> Callable[[torch.Tensor, TokenLayout], torch.Tensor]:
    return lambda tokens, layout: tokens[:, layout.index(name)]


def _mean(tokens: torch.Tensor, layout: TokenLayout) -> torch.Tensor:
    return reduce(tokens[:, layout.prefix_count :], "batch patch width -> batch width", "mean")


def _mean_of_all(tokens: torch.Tensor, layout: TokenLayout) -> torch.Tensor:
    return reduce(tokens, "batch token width -> batch width", "mean")


def _cls_and_mean(tokens: torch.Tensor, layout: TokenLayout) -> torch.Tensor:
    return torch.cat([tokens[:, layout.index("cls")], _mean(tokens, layout)], -1)


def _cls_and_distillation(tokens: torch.Tensor, layout: TokenLayout) -> torch.Tensor:
    return torch.cat([tokens[:, layout.index(name)] for name in ("cls", "distillation")], -1)


PoolingName = Literal["cls", "mean", "mean of all", "cls and mean", "cls and distillation", "attention"]
POOLINGS = {
    "cls": Pooling(("cls",), True, 1, _token("cls")),
    "mean": Pooling((), False, 1, _mean),
    "mean of all": Pooling((), False, 1, _mean_of_all),
    "cls and mean": Pooling(("cls",), False, 2, _cls_and_mean),
    "cls and distillation": Pooling(("cls", "distillation"), True, 2, _cls_and_distillation),
    "attention": Pooling((), False, 1, None),
}
"""The features to classify: the CLS token, the mean of the patches, the mean of all tokens, CLS token and mean of the
patches side by side (DINOv2), CLS and distillation token side by side (DeiT), or the attention of one learned query to
the patches (SigLIP)."""
