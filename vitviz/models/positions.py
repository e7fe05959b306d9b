"""Positions of patches: learned embeddings on another grid, and rotary angles."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from einops import rearrange, repeat

from vitviz.errors.kinds import ImageError

# "1 width row column", grid height and grid width, to "1 width grid_height grid_width".
Rule = Callable[[torch.Tensor, int, int], torch.Tensor]


def _resized(planes: torch.Tensor, grid_height: int, grid_width: int, **options: object) -> torch.Tensor:
    return F.interpolate(planes, (grid_height, grid_width), **options)  # type: ignore[arg-type]


def _resized_by_offset(planes: torch.Tensor, grid_height: int, grid_width: int) -> torch.Tensor:
    """Bicubic, with a tenth of a patch added to the scale factors, as in DINO's training and inference."""
    factors = (grid_height + 0.1) / planes.shape[-2], (grid_width + 0.1) / planes.shape[-1]
    return F.interpolate(planes, scale_factor=factors, mode="bicubic")


def _first(planes: torch.Tensor, grid_height: int, grid_width: int) -> torch.Tensor:
    """The first positions in reading order, whatever the width of the grid."""
    sequence = planes.flatten(2)
    count = grid_height * grid_width
    if count > sequence.shape[-1]:
        raise ImageError(
            f"grid of {grid_height}×{grid_width} patches: this model has positions for at most {sequence.shape[-1]}"
        )
    return sequence[..., :count].unflatten(-1, (grid_height, grid_width))


def _refuse(planes: torch.Tensor, grid_height: int, grid_width: int) -> torch.Tensor:
    rows, columns = planes.shape[-2:]
    raise ImageError(
        f"grid of {grid_height}×{grid_width} patches: this model has positions for {rows}×{columns} and no rule for "
        "others"
    )


PositionRule = Literal[
    "bicubic antialiased",
    "bicubic",
    "bicubic offset",
    "bicubic corners",
    "bilinear antialiased",
    "bilinear corners",
    "reading order",
    "fixed",
]
POSITION_RULES: dict[str, Rule] = {
    "bicubic antialiased": partial(_resized, mode="bicubic", antialias=True),
    "bicubic": partial(_resized, mode="bicubic"),
    "bicubic offset": _resized_by_offset,
    "bicubic corners": partial(_resized, mode="bicubic", align_corners=True),
    "bilinear antialiased": partial(_resized, mode="bilinear", antialias=True),
    "bilinear corners": partial(_resized, mode="bilinear", align_corners=True),
    "reading order": _first,
    "fixed": _refuse,
}
"""How learned positions are resized to another grid. Each library does it in its own way, with its own numbers."""


def resize_positions(
    positions: torch.Tensor, grid_height: int, grid_width: int, rule: str = "bicubic antialiased"
) -> torch.Tensor:
    """Position embeddings for another grid; unchanged for the trained one.

    Args:
        positions: ``"row column width"`` of the trained grid.
        grid_height, grid_width: size of the new grid.
        rule: a name in :data:`POSITION_RULES`.

    Returns:
        ``"grid_height grid_width width"``.

    Raises:
        ImageError: the rule has no positions for this grid.
    """
    if positions.shape[:2] == (grid_height, grid_width):
        return positions
    precise = positions.to(torch.promote_types(positions.dtype, torch.float32))
    planes = rearrange(precise, "row column width -> 1 width row column")
    resized = POSITION_RULES[rule](planes, grid_height, grid_width)
    return rearrange(resized, "1 width row column -> row column width").to(positions.dtype)


def rotary_periods(head_width: int, base: float = 100.0) -> torch.Tensor:
    """Periods of rotary positions, ``"head_width / 4"``, from 1 to nearly the base in geometric steps."""
    return base ** (torch.arange(head_width // 4, dtype=torch.float32) * 4 / head_width)


def rotary_angles(grid_height: int, grid_width: int, periods: torch.Tensor) -> torch.Tensor:
    """The angles by which each pair of features of a patch's query or key is rotated, as in DINOv3.

    Siméoni et al. 2025, "DINOv3"; rotary positions: Su et al. 2021, "RoFormer". A patch's centre lies in [-1, 1] along
    each side of a grid of any size, so that every grid covers the trained range.

    Args:
        grid_height, grid_width: size of the patch grid.
        periods: in units of half a side of the grid; rows and columns rotate one pair for each.

    Returns:
        ``"(row column) pair"`` in radians, with twice as many pairs as periods, the rows' first.
    """
    rows, columns = (
        2 * (torch.arange(count, dtype=periods.dtype, device=periods.device) + 0.5) / count - 1
        for count in (grid_height, grid_width)
    )
    by_row = repeat(rows, "row -> row column 1", column=grid_width)
    by_column = repeat(columns, "column -> row column 1", row=grid_height)
    angles = 2 * math.pi * torch.stack([by_row / periods, by_column / periods], 2)
    return rearrange(angles, "row column side pair -> (row column) (side pair)")


def rotate(tokens: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Rotate the patches of queries or keys; the prefix tokens before them stay.

    Args:
        tokens: ``"... token dim"``; a pair is one feature of the first half of dim and its counterpart in the second.
        angles: ``"... patch pair"``.
    """
    prefix_count = tokens.shape[-2] - angles.shape[-2]
    first, second = tokens[..., prefix_count:, :].chunk(2, -1)
    cosine, sine = angles.cos().to(tokens.dtype), angles.sin().to(tokens.dtype)
    rotated = torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1)
    return torch.cat([tokens[..., :prefix_count, :], rotated], -2)
