"""Comparing tensors."""

from __future__ import annotations

from typing import Protocol

import torch


class Close(Protocol):
    """Asserts that two tensors agree in every entry, up to a tolerance."""

    def __call__(self, found: torch.Tensor, expected: torch.Tensor, tolerance: float = ...) -> None: ...


def closeness(tolerance: float = 0.0, relative: float = 0.0, any_type: bool = False) -> Close:
    """A comparison with default tolerances, for one test file.

    Args:
        tolerance: absolute tolerance, unless a call states another.
        relative: relative tolerance, added to the absolute one.
        any_type: compare tensors of different types in double precision instead of failing.
    """

    def close(found: torch.Tensor, expected: torch.Tensor, tolerance: float = tolerance) -> None:
        if any_type:
            found, expected = found.double(), expected.double()
        torch.testing.assert_close(found, expected, atol=tolerance, rtol=relative)

    return close
