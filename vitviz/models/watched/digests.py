"""Digests of the tokens that a call of attention reads, by which two passes are compared."""

from __future__ import annotations

import torch

from vitviz.attention.precision import precise
from vitviz.models.watched.calls import AttentionCall

# Numbers of a token's digest.
NUMBERS = 32


def digest(tensor: torch.Tensor) -> torch.Tensor:
    """``"window head token dim"`` as ``"token number"``, window after window: random sums of each token's numbers.

    The length of a difference of digests is about that of the tokens, and zero exactly where they are the same.
    """
    tokens = precise(tensor.detach()).movedim(2, 1).flatten(0, 1).flatten(1).double().cpu()
    generator = torch.Generator().manual_seed(0)
    return tokens @ torch.randn(tokens.shape[1], NUMBERS, generator=generator, dtype=torch.double)


def call_digests(call: AttentionCall) -> torch.Tensor:
    """Digests of a call's queries, keys and values, ``"3 token number"``."""
    return torch.stack([digest(each) for each in (call.queries, call.keys, call.values)])


def token_changes(before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
    """How much each token changed, ``"3 token"``, from digests of two passes; infinite for NaN."""
    return torch.linalg.vector_norm(after - before, dim=-1).nan_to_num(torch.inf)
