"""The grids of patches among which a module's layers attend: usually one, several if it is hierarchical."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from vitviz.models.watched.calls import AttentionCall
from vitviz.models.watched.replay import Replay
from vitviz.models.watched.structure import CallShape

# The most by which a grid's aspect ratio may differ from the picture's, since a stem may round.
MAX_ASPECT_ERROR = 0.1


@dataclass(frozen=True)
class AttentionGrid:
    """Layers whose tokens are one grid of patches.

    Args:
        rows, columns: size in patches.
        extra: number of other tokens among them.
        layers: number of calls of attention among its patches and other tokens.
    """

    rows: int
    columns: int
    extra: int
    layers: int

    @property
    def tokens(self) -> int:
        """Number of all tokens."""
        return self.rows * self.columns + self.extra


def call_shapes(replay: Replay, pixels: torch.Tensor) -> list[CallShape]:
    """The shapes of all calls of attention in a forward pass."""
    shapes: list[CallShape] = []

    def add(call: AttentionCall) -> torch.Tensor:
        shapes.append(CallShape.of(call))
        return call.output

    replay(pixels, add, until=range(len(replay.calls)))
    return shapes


def is_one_grid(shapes: Sequence[CallShape]) -> bool:
    """Whether all layers attend globally among the same tokens; a pooling may follow."""
    layers = [shape for shape in shapes if shape.queries > 1]
    return all(shape.windows == 1 for shape in shapes) and len({(shape.queries, shape.keys) for shape in layers}) <= 1


def attention_grids(shapes: Sequence[CallShape], size: tuple[int, int], extra: int) -> list[AttentionGrid]:
    """The grids of a module's layers, sorted by number of layers, then by number of patches, most first.

    Args:
        shapes: shapes of all calls.
        size: height and width of the image in pixels.
        extra: number of the module's tokens that are not patches; a layer has all of them or none.
    """
    counts: Counter[tuple[int, int, int]] = Counter()
    for shape in shapes:
        if shape.queries != shape.keys:
            continue
        for tokens in shape.token_counts:
            candidates = [(grid_of(tokens - others, size), others) for others in dict.fromkeys((0, extra))]
            counts.update({(*grid, others) for grid, others in candidates if grid is not None})
    grids = [AttentionGrid(*key, layers) for key, layers in counts.items()]
    return sorted(grids, key=lambda grid: (-grid.layers, -grid.rows * grid.columns))


def grid_of(count: int, size: tuple[int, int]) -> tuple[int, int] | None:
    """Rows and columns of ``count`` patches on an image of this height and width; None if they form no grid."""
    height, width = size
    for rows in range(1, count + 1):
        columns, rest = divmod(count, rows)
        if not rest and abs(rows * width / (columns * height) - 1) < MAX_ASPECT_ERROR:
            return (rows, columns) if not height % rows and not width % columns else None
    return None
