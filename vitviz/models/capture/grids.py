"""The grids of patches that a module's layers attend among: one as a rule, several where it is hierarchical."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from vitviz.models.capture.calls import AttentionCall
from vitviz.models.capture.interception import Interception
from vitviz.models.capture.structure import CallShape

# Grids are as long and as wide as the picture, but for a stem that rounds.
MOST_OF_ASPECT = 0.1


@dataclass(frozen=True)
class AttentionGrid:
    """Layers whose tokens are one grid of patches.

    Args:
        rows, columns: of patches.
        extra: tokens among them that are no patches.
        layers: how many calls of attention have so many tokens.
    """

    rows: int
    columns: int
    extra: int
    layers: int


@dataclass
class _Shapes:
    """Keeps the sizes of calls."""

    found: list[CallShape] = field(default_factory=list)

    def __call__(self, call: AttentionCall) -> torch.Tensor:
        self.found.append(CallShape.of(call))
        return call.output


def called_shapes(run: Callable[[torch.Tensor], torch.Tensor], pixels: torch.Tensor) -> list[CallShape]:
    """The sizes of all calls of attention in a forward pass, which is :data:`verification.Run`."""
    shapes = _Shapes()
    with Interception(shapes):
        run(pixels)
    return shapes.found


def is_one_grid(shapes: Sequence[CallShape]) -> bool:
    """Whether all layers attend globally among the same tokens; a pooling may follow."""
    layers = [each for each in shapes if each.queries > 1]
    return all(each.windows == 1 for each in shapes) and len({(each.queries, each.keys) for each in layers}) <= 1


def attention_grids(shapes: Sequence[CallShape], size: tuple[int, int], extra: int) -> list[AttentionGrid]:
    """The grids of a module's layers, those of most layers first, and of as many the finer.

    Args:
        shapes: of all calls.
        size: height and width of the image in pixels.
        extra: how many tokens the module has that are no patches; its layers have all of them or none.
    """
    found: Counter[tuple[int, int, int]] = Counter()
    for shape in shapes:
        if shape.queries != shape.keys:
            continue
        for tokens in shape.token_counts:
            grids = [(grid_of(tokens - more, size), more) for more in dict.fromkeys((0, extra))]
            found.update({(*grid, more) for grid, more in grids if grid is not None})
    listed = [AttentionGrid(*key, layers) for key, layers in found.items()]
    return sorted(listed, key=lambda grid: (-grid.layers, -grid.rows * grid.columns))


def grid_of(count: int, size: tuple[int, int]) -> tuple[int, int] | None:
    """Rows and columns of so many patches on an image of this height and width; None where they make no grid of it."""
    height, width = size
    for rows in range(1, count + 1):
        columns, rest = divmod(count, rows)
        if not rest and abs(rows * width / (columns * height) - 1) < MOST_OF_ASPECT:
            return (rows, columns) if not height % rows and not width % columns else None
    return None
