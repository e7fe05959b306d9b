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
    one that looks everywhere have 0. Of one word, an even map takes the place of the mean.

    Args:
        rows: for each word ``"layer head token"``, the attention on the picture's tokens.
    """
    attention = torch.stack(list(rows)).double()
    shares = attention.sum(-1)
    parts = attention / shares.clamp(min=1e-30)[..., None]
    others = parts.mean(0) if len(parts) > 1 else torch.full_like(parts[0], 1 / parts.shape[-1])
    gain = _entropy(others) - _entropy(parts).mean(0)
    share = shares.mean(0)
    bits = (gain * share).clamp(min=0)
    order = bits.flatten().argsort(descending=True, stable=True).tolist()
    places = (divmod(place, bits.shape[1]) for place in order)
    return [Reading(layer, head, float(bits[layer, head]), float(share[layer, head])) for layer, head in places]


def _entropy(parts: torch.Tensor) -> torch.Tensor:
    """In bits, of ``"… token"``."""
    return -(parts * parts.clamp(min=1e-30).log2()).sum(-1)
