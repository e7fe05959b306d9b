"""Comparing tensors."""

from __future__ import annotations

from typing import Protocol

import torch


class Close(Protocol):
    """Asserts that every entry of a tensor is that of another, but for a tolerance."""

    def __call__(self, found: torch.Tensor, expected: torch.Tensor, tolerance: float = ...) -> None: ...


def closeness(tolerance: float = 0.0, relative: float = 0.0, any_type: bool = False) -> Close:
    """The comparison of a test file, with its usual tolerances.

    Args:
        tolerance: absolute, where a call states no other.
        relative: added to it, as a part of the expected entry.
        any_type: tensors of other types are compared in double precision, and are not refused.
    """

    def close(found: torch.Tensor, expected: torch.Tensor, tolerance: float = tolerance) -> None:
        if any_type:
            found, expected = found.double(), expected.double()
        torch.testing.assert_close(found, expected, atol=tolerance, rtol=relative)

    return close
