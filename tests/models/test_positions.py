"""Positions of patches on another grid; what packages do on theirs is held in ``tests/parity``."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.support.refusals import check_refusals
from vitviz.errors.kinds import ImageError
from vitviz.models.positions import resize_positions


def trained() -> torch.Tensor:
    return torch.randn(5, 6, 3, dtype=torch.float64)


@pytest.mark.parametrize(("height", "width"), [(3, 4), (7, 5), (2, 9), (10, 12), (6, 5)])
def test_between_corners_positions_are_interpolated_along_both_sides(height: int, width: int) -> None:
    positions = trained()
    rows, columns = (
        np.stack([np.interp(np.linspace(0, count - 1, new), np.arange(count), unit) for unit in np.eye(count)], 1)
        for new, count in ((height, 5), (width, 6))
    )
    expected = np.einsum("rR,cC,RCw->rcw", rows, columns, positions.numpy())
    found = resize_positions(positions, height, width, "bilinear corners")
    np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("height", "width"), [(1, 1), (3, 4), (5, 5), (6, 5), (1, 30), (2, 15)])
def test_in_reading_order_the_first_positions_are_taken_however_long_a_row_is(height: int, width: int) -> None:
    positions = trained()
    expected = positions.flatten(0, 1)[: height * width].unflatten(0, (height, width))
    assert torch.equal(resize_positions(positions, height, width, "reading order"), expected)


@pytest.mark.parametrize(
    ("rule", "height", "width", "known"),
    [
        *(("reading order", height, width, "at most 30") for height, width in ((6, 6), (1, 31), (31, 1))),
        *(("fixed", height, width, "5×6 and no") for height, width in ((6, 5), (5, 5), (1, 1))),
    ],
)
def test_a_grid_without_positions_is_refused(rule: str, height: int, width: int, known: str) -> None:
    message = f"grid of {height}×{width} patches: this model has positions for {known}"
    check_refusals(ImageError, {message: lambda: resize_positions(trained(), height, width, rule)})
