"""Hierarchical modules, which have several grids of patches; a model shows one of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from vitviz.models.watched.grids import AttentionGrid, attention_grids, call_shapes, is_one_grid
from vitviz.models.watched.replay import Replay

Size = tuple[int, int]


@dataclass(frozen=True)
class Stages:
    """The grids of patches of a module.

    Args:
        size: height and width of its images.
        grids: the grid of most layers first; empty if all layers attend among the same tokens.
        tokens: number of these tokens; None for a module with several grids, or without attention.
    """

    size: Size
    grids: tuple[AttentionGrid, ...]
    tokens: int | None

    @property
    def patches(self) -> tuple[Size, ...]:
        """Height and width of the patches of every grid in pixels."""
        return tuple((self.size[0] // grid.rows, self.size[1] // grid.columns) for grid in self.grids)

    def extra(self, patch: Size) -> int | None:
        """Number of tokens that are not patches, beside patches of this size; None if there is no such grid."""
        if self.tokens is not None:
            return self.tokens - (self.size[0] // patch[0]) * (self.size[1] // patch[1])
        return next(
            (grid.extra for grid, patches in zip(self.grids, self.patches, strict=True) if patches == patch), None
        )

    def tokens_beside(self, patch: Size) -> list[int]:
        """Numbers of tokens of the grids of patches of other sizes."""
        return [grid.tokens for grid, size in zip(self.grids, self.patches, strict=True) if size != patch]

    def describe_grid(self, patch: Size, layers: int) -> str:
        """A description of the shown grid: ``"patches of 16 pixels: 6 layers of 14×14; others: 4, 8 and 32 pixels"``.

        Args:
            patch: of the grid, in pixels.
            layers: number of layers that attend among its patches.
        """
        shown_grid = next(grid for grid, size in zip(self.grids, self.patches, strict=True) if size == patch)
        count = f"{layers} layer{'s' if layers > 1 else ''} of {shown_grid.rows}×{shown_grid.columns}"
        other_sizes = sorted(
            {_pixels(size) for size in self.patches if size != patch}, key=lambda text: (len(text), text)
        )
        more = f"; patch_size={' or '.join(other_sizes)} shows other layers" if other_sizes else ""
        return f"patches of {_pixels(patch)} pixels: {count}{more}"


def module_stages(replay: Replay, pixels: torch.Tensor, extra: int) -> Stages:
    """The grids of a module, found in one forward pass.

    Args:
        replay: of the module.
        pixels: ``"1 channel height width"``.
        extra: number of its tokens that are not patches.
    """
    size = (pixels.shape[-2], pixels.shape[-1])
    with torch.inference_mode(False), torch.no_grad():
        shapes = call_shapes(replay, pixels)
    if not is_one_grid(shapes):
        return Stages(size, tuple(attention_grids(shapes, size, extra)), None)
    return Stages(size, (), shapes[0].queries if shapes else None)


def _pixels(patch: Size) -> str:
    return str(patch[0]) if patch[0] == patch[1] else f"({patch[0]}, {patch[1]})"
