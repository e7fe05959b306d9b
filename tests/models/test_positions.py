"""Positions of patches on another grid by every rule, and rotary angles, against plain formulas."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from vitviz.errors.kinds import ImageError
from vitviz.models.positions import (
    POSITION_RULES,
    resize_positions,
    rotary_angles,
    rotary_periods,
    rotate,
)

pytestmark = pytest.mark.parity

GRIDS = [(3, 4), (7, 5), (2, 9), (1, 1), (10, 12), (6, 5)]
INTERPOLATING = [rule for rule in POSITION_RULES if rule not in ("reading order", "fixed")]
every_interpolation = pytest.mark.parametrize("rule", INTERPOLATING)
every_grid = pytest.mark.parametrize(("height", "width"), GRIDS)


def trained(rows: int = 5, columns: int = 6, width: int = 3) -> torch.Tensor:
    return torch.randn(rows, columns, width, dtype=torch.float64)


# Every rule is separable. Along a side it is a matrix, "target trained", written here from its definition.


def cubic(distance: float) -> float:
    """Keys 1981, with the parameter -0.75 of torch and OpenCV."""
    x, a = abs(distance), -0.75
    if x <= 1:
        return (a + 2) * x**3 - (a + 3) * x**2 + 1
    return a * (x**3 - 5 * x**2 + 8 * x - 4) if x < 2 else 0.0


def sharper_cubic(distance: float) -> float:
    """Keys 1981, with the parameter -0.5 of Pillow, which torch takes where it filters against aliasing."""
    x, a = abs(distance), -0.5
    if x <= 1:
        return (a + 2) * x**3 - (a + 3) * x**2 + 1
    return a * (x**3 - 5 * x**2 + 8 * x - 4) if x < 2 else 0.0


def triangle(distance: float) -> float:
    return max(0.0, 1 - abs(distance))


def sampled(places: np.ndarray, count: int) -> np.ndarray:
    """Bicubic interpolation at these places; beyond its ends a side repeats its last value."""
    matrix = np.zeros((len(places), count))
    for index, place in enumerate(places):
        first = math.floor(place) - 1
        for source in range(first, first + 4):
            matrix[index, min(max(source, 0), count - 1)] += cubic(place - source)
    return matrix


def filtered(target_count: int, count: int, kernel: str) -> np.ndarray:
    """Resizing as in Pillow: the kernel is stretched if the side gets shorter, cut at the ends and normalised."""
    scale, reach = count / target_count, 2 if kernel == "bicubic" else 1
    stretch = max(scale, 1.0)
    matrix = np.zeros((target_count, count))
    for index in range(target_count):
        centre = (index + 0.5) * scale
        first, last = max(int(centre - reach * stretch + 0.5), 0), min(int(centre + reach * stretch + 0.5), count)
        for source in range(first, last):
            function = sharper_cubic if kernel == "bicubic" else triangle
            matrix[index, source] = function((source + 0.5 - centre) / stretch)
    return matrix / matrix.sum(1, keepdims=True)


def along_a_side(rule: str, target_count: int, count: int) -> np.ndarray:
    indices = np.arange(target_count)
    corners = indices * ((count - 1) / (target_count - 1) if target_count > 1 else 0.0)
    if rule == "bilinear corners":
        return np.stack([np.interp(corners, np.arange(count), unit) for unit in np.eye(count)], 1)
    if rule == "bicubic corners":
        return sampled(corners, count)
    if rule == "bicubic":
        return sampled((indices + 0.5) * count / target_count - 0.5, count)
    if rule == "bicubic offset":
        # DINO: "we add a small number to avoid floating point error in the interpolation".
        return sampled((indices + 0.5) / ((target_count + 0.1) / count) - 0.5, count)
    return filtered(target_count, count, rule.partition(" ")[0])


@every_interpolation
@every_grid
def test_every_rule_equals_its_definition(rule: str, height: int, width: int) -> None:
    positions = trained()
    found = resize_positions(positions, height, width, rule)
    rows, columns = along_a_side(rule, height, 5), along_a_side(rule, width, 6)
    expected = np.einsum("rR,cC,RCw->rcw", rows, columns, positions.numpy())
    assert found.shape == (height, width, 3)
    np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("height", "width"), [(1, 1), (3, 4), (5, 5), (6, 5), (1, 30), (2, 15)])
def test_in_reading_order_the_first_positions_are_taken_however_long_a_row_is(height: int, width: int) -> None:
    positions = trained()
    found = resize_positions(positions, height, width, "reading order")
    for row in range(height):
        for column in range(width):
            number = row * width + column
            assert torch.equal(found[row, column], positions[number // 6, number % 6])


@pytest.mark.parametrize(("height", "width"), [(6, 6), (1, 31), (31, 1)])
def test_in_reading_order_there_are_no_more_than_trained(height: int, width: int) -> None:
    with pytest.raises(ImageError, match=f"grid of {height}×{width} patches: this model has positions for at most 30"):
        resize_positions(trained(), height, width, "reading order")


@pytest.mark.parametrize(("height", "width"), [(6, 5), (5, 5), (1, 1)])
def test_fixed_positions_know_no_other_grid(height: int, width: int) -> None:
    with pytest.raises(ImageError, match=f"grid of {height}×{width} patches: this model has positions for 5×6 and no"):
        resize_positions(trained(), height, width, "fixed")


# Rotary positions.


@pytest.mark.parametrize("base", [100.0, 10.0, 10_000.0])
@pytest.mark.parametrize("head_width", [4, 8, 16, 64])
def test_periods_rise_from_one_in_geometric_steps(head_width: int, base: float) -> None:
    expected = [base ** (index / (head_width / 4)) for index in range(head_width // 4)]
    np.testing.assert_allclose(rotary_periods(head_width, base), expected, rtol=1e-6)


@every_grid
def test_angles_are_those_of_the_centres_of_patches(height: int, width: int) -> None:
    periods = rotary_periods(16).double()
    angles = rotary_angles(height, width, periods)
    assert angles.shape == (height * width, 8)
    for row in range(height):
        for column in range(width):
            y, x = (2 * row + 1) / height - 1, (2 * column + 1) / width - 1
            expected = [2 * math.pi * place / float(period) for place in (y, x) for period in periods]
            np.testing.assert_allclose(angles[row * width + column], expected, rtol=0, atol=1e-12)


@every_grid
def test_turning_is_multiplying_by_a_rotation_of_every_pair(height: int, width: int) -> None:
    angles = rotary_angles(height, width, rotary_periods(8).double())
    tokens = torch.randn(2, 3, 2 + height * width, 8, dtype=torch.float64)
    found = rotate(tokens, angles)
    assert torch.equal(found[..., :2, :], tokens[..., :2, :])
    # A pair as a complex number: turning is multiplying by e^(i angle).
    pairs = torch.complex(tokens[..., 2:, :4], tokens[..., 2:, 4:]) * torch.polar(torch.ones_like(angles), angles)
    torch.testing.assert_close(found[..., 2:, :], torch.cat([pairs.real, pairs.imag], -1))
    torch.testing.assert_close(found.norm(dim=-1), tokens.norm(dim=-1))


@pytest.mark.parametrize("along", ["row", "column"])
def test_a_score_depends_on_how_far_apart_two_patches_are(along: str) -> None:
    # The same query at every patch, the same key at every patch, on one long row or column.
    grid = (1, 9) if along == "row" else (9, 1)
    angles = rotary_angles(*grid, rotary_periods(16).double())
    query, key = torch.randn(2, 16, dtype=torch.float64)
    queries, keys = (rotate(vector.expand(9, 16), angles) for vector in (query, key))
    scores = queries @ keys.T
    for distance in range(-8, 9):
        diagonal = scores.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal))
    # The score is not constant.
    assert scores[0].std() > 0.1
