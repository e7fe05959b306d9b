"""The Muon optimiser, in the precision that is fast on the device."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch

from vitviz.training.device import has_bfloat16

# Coefficients of the polynomial that brings singular values near 1, and the number of its iterations.
COEFFICIENTS = 3.4445, -4.7750, 2.0315
ITERATIONS = 5


class Muon(torch.optim.Optimizer):
    """Momentum whose update is the nearest orthogonal matrix: Jordan et al. 2024, "Muon".

    The update is scaled to the size of an AdamW update (Liu et al. 2025, "Muon is Scalable for LLM Training"), so that
    learning rates of both are comparable. ``torch.optim.Muon`` always multiplies in bfloat16, which takes ten times as
    long as float32 on processors that emulate it.

    Args:
        matrices: parameters of two dimensions.
        lr: learning rate.
        weight_decay: decoupled weight decay, multiplied by the learning rate.
        momentum: decay of the running mean of the gradients, per step.
    """

    def __init__(
        self, matrices: Iterable[torch.nn.Parameter], lr: float, weight_decay: float, momentum: float = 0.95
    ) -> None:
        super().__init__(matrices, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update every matrix that has a gradient."""
        for group in self.param_groups:
            # Matrices of one shape are multiplied as a batch, tall ones transposed.
            updates: defaultdict[tuple[int, int], list[tuple[torch.Tensor, torch.Tensor]]] = defaultdict(list)
            for matrix in group["params"]:
                if matrix.grad is None:
                    continue
                state = self.state[matrix]
                if not state:
                    state["momentum_buffer"] = torch.zeros_like(matrix)
                mean = state["momentum_buffer"].lerp_(matrix.grad, 1 - group["momentum"])
                update = matrix.grad.lerp(mean, group["momentum"])
                wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.mT
                updates[wide.shape[0], wide.shape[1]].append((wide, update if wide is matrix else update.mT))
            for (_, columns), pairs in updates.items():
                rate = group["lr"] * 0.2 * math.sqrt(columns)
                orthogonal = orthogonalise(torch.stack([update for _, update in pairs]))
                for (matrix, _), update in zip(pairs, orthogonal, strict=True):
                    matrix.mul_(1 - group["lr"] * group["weight_decay"]).add_(update, alpha=-rate)


def orthogonalise(matrices: torch.Tensor) -> torch.Tensor:
    """Approximate the nearest orthogonal matrices by five Newton-Schulz steps; singular values end between 0.7 and 1.2.

    Input and result are ``"matrix row column"``, with at most as many rows as columns.
    """
    linear, cubic, quintic = COEFFICIENTS
    iterate = matrices.bfloat16() if has_bfloat16(matrices.device) else matrices
    iterate = iterate / iterate.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(ITERATIONS):
        gram = iterate @ iterate.mT
        # A fused product and sum rounds to bfloat16 only once.
        polynomial = torch.baddbmm(gram, gram, gram, beta=cubic, alpha=quintic)
        iterate = torch.baddbmm(iterate, polynomial, iterate, beta=linear)
    return iterate.to(matrices.dtype)
