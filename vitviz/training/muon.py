"""The Muon optimiser, in the precision that the device multiplies fast."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch

from vitviz.training.device import has_bfloat16

# The polynomial that brings singular values near 1, and how often it is applied.
COEFFICIENTS = 3.4445, -4.7750, 2.0315
ITERATIONS = 5


class Muon(torch.optim.Optimizer):
    """Momentum whose update is the nearest orthogonal matrix: Jordan et al. 2024, "Muon".

    The update is scaled to the size of one of AdamW (Liu et al. 2025, "Muon is Scalable for LLM Training"), so that
    both have one scale of learning rates. ``torch.optim.Muon`` multiplies in bfloat16 everywhere, which takes ten
    times as long as float32 on processors that emulate it.

    Args:
        matrices: parameters of two dimensions.
        lr: learning rate.
        weight_decay: decoupled, multiplied with the learning rate.
        momentum: part of the mean of the gradients that is kept from step to step.
    """

    def __init__(
        self, matrices: Iterable[torch.nn.Parameter], lr: float, weight_decay: float, momentum: float = 0.95
    ) -> None:
        super().__init__(matrices, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Move every matrix that has a gradient."""
        for group in self.param_groups:
            # Matrices of one shape are multiplied together, the tall ones turned on their side.
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
    """About the nearest orthogonal matrices, ``"matrix row column"`` with at most as many rows as columns.

    Singular values come out between 0.7 and 1.2: five steps of Newton and Schulz.
    """
    linear, cubic, quintic = COEFFICIENTS
    found = matrices.bfloat16() if has_bfloat16(matrices.device) else matrices
    found = found / found.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(ITERATIONS):
        gram = found @ found.mT
        # Sums and products in one, so that bfloat16 is rounded to once.
        polynomial = torch.baddbmm(gram, gram, gram, beta=cubic, alpha=quintic)
        found = torch.baddbmm(found, polynomial, found, beta=linear)
    return found.to(matrices.dtype)
