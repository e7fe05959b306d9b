"""Which layers and heads of a network that writes read the picture."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.special import entr


@dataclass(frozen=True)
class Reading:
    """How much one head reads of the picture.

    Args:
        layer: from 0, among those that read the picture.
        head: from 0.
        bits: how much the place where it looks tells of the token that is written: the mutual information of both,
            times the share.
        share: of its attention that lies on the picture, in the mean of all tokens.
        ahead: whether it looks where the other heads look one token later (1) or looked one token before (0); ½ for
            neither.
    """

    layer: int
    head: int
    bits: float
    share: float
    ahead: float


def rank_heads(layers: int, rows: Callable[[int], torch.Tensor]) -> list[Reading]:
    """All heads, the one that reads most first: by ``bits · ahead``, and of equal ones by the share.

    A head that reads looks elsewhere for another token. The mutual information of token and place is
    ``H(mean of tokens) − mean of H(token)`` of its attention on the picture, where H is the entropy. A head that looks
    at the same place whatever is written, such as a sink, and one that looks everywhere have 0.

    Some heads look at what was read *last*, and their places differ as much. They follow: where they look more than in
    their mean, the others did so one token before. A head that reads what is written next leads.

    Args:
        layers: number of layers.
        rows: of a layer, ``"token head place"``, the attention on the picture's tokens.
    """
    # Of all layers at once, it would take much memory.
    found = []
    for layer in range(layers):
        excess, bits, share = _read(rows(layer))
        found.append((bits, share, torch.einsum("h, tha -> ta", bits, excess)))
    total = torch.cat([bits for bits, *_ in found]).sum().clamp(min=1e-30)
    everyone = torch.stack([excess for *_, excess in found]).sum(0) / total
    readings = []
    for layer, (bits, share, _) in enumerate(found):
        own, *_ = _read(rows(layer))
        later = torch.minimum(own[:-1], everyone[1:, None]).sum((0, 2))
        earlier = torch.minimum(own[1:], everyone[:-1, None]).sum((0, 2))
        ahead = (later + 1e-12) / (later + earlier + 2e-12)
        numbers = torch.stack([bits, share, ahead], -1).tolist()
        readings += [Reading(layer, head, *each) for head, each in enumerate(numbers)]
    return sorted(readings, key=lambda each: (-each.bits * each.ahead, -each.share))


def _read(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Where each head looks more than in its mean, ``"token head place"``, its bits and its share, ``"head"``."""
    attention = rows.double()
    shares = attention.sum(-1)
    parts = attention / shares.clamp(min=1e-30)[..., None]
    information = (entr(parts.mean(0)).sum(-1) - entr(parts).sum(-1).mean(0)) / math.log(2)
    share = shares.mean(0)
    return (parts - parts.mean(0)).clamp(min=0), (information * share).clamp(min=0), share
