"""Which layers and heads of a network that writes read the picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Reading:
    """How much one head reads of the picture.

    Args:
        layer: from 0, among those that read the picture.
        head: from 0.
        bits: how much the place where it looks tells of the word that is written: the mutual information of both, times
            the share.
        share: of its attention that lies on the picture, in the mean of all words.
    """

    layer: int
    head: int
    bits: float
    share: float


def rank_heads(rows: Sequence[torch.Tensor]) -> list[Reading]:
    """All heads, the one that reads most first.

    A head that reads looks elsewhere for another word. So it is ranked by the mutual information of word and place,
    ``H(mean of words) − mean of H(word)`` of its attention on the picture, where H is the entropy, times the share of
    its attention that lies on the picture. A head that looks at the same place whatever is written, such as a sink, and
    one that looks everywhere have 0. Heads of equal information, such as all of one word, are ranked by that share.

    Args:
        rows: for each word ``"layer head token"``, the attention on the picture's tokens.
    """
    attention = torch.stack(list(rows)).double()
    shares = attention.sum(-1)
    parts = attention / shares.clamp(min=1e-30)[..., None]
    share = shares.mean(0)
    bits = ((_entropy(parts.mean(0)) - _entropy(parts).mean(0)) * share).clamp(min=0)
    readings = [
        Reading(layer, head, *numbers)
        for layer, heads in enumerate(torch.stack([bits, share], -1).tolist())
        for head, numbers in enumerate(heads)
    ]
    return sorted(readings, key=lambda each: (-each.bits, -each.share))


def _entropy(parts: torch.Tensor) -> torch.Tensor:
    """In bits, of ``"… token"``."""
    return -(parts * parts.clamp(min=1e-30).log2()).sum(-1)
