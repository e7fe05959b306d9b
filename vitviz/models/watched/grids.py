"""The grids of patches among which a module's layers attend: usually one, several if it is hierarchical."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from vitviz.models.watched.module_config import Size
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
        patch: height and width of a patch in pixels.
    """

    rows: int
    columns: int
    extra: int
    layers: int
    patch: Size


def is_one_grid(shapes: Sequence[CallShape]) -> bool:
    """Whether all layers attend globally among the same tokens; a pooling may follow."""
    layers = [shape for shape in shapes if shape.queries > 1]
    return all(shape.windows == 1 for shape in shapes) and len({(shape.queries, shape.keys) for shape in layers}) <= 1


def attention_grids(shapes: Sequence[CallShape], size: Size, extra: int) -> list[AttentionGrid]:
    """The grids of a module's layers, sorted by number of layers, then by number of patches, most first.

    Args:
        shapes: shapes of all calls.
        size: height and width of the image in pixels.
        extra: number of the module's tokens that are not patches; a layer has all of them or none.
    """
    counts: Counter[tuple[int, int, int]] = Counter()
    for shape in shapes:
        if shape.queries == shape.keys:
            tokens = shape.windows * shape.queries
            candidates = [(grid_of(tokens - others, size), others) for others in dict.fromkeys((0, extra))]
            counts.update({(*grid, others) for grid, others in candidates if grid is not None})
    patch = {key: (size[0] // key[0], size[1] // key[1]) for key in counts}
    grids = [AttentionGrid(*key, layers, patch[key]) for key, layers in counts.items()]
    return sorted(grids, key=lambda grid: (-grid.layers, -grid.rows * grid.columns))


def describe_grid(grids: Sequence[AttentionGrid], grid: AttentionGrid, layers: int) -> str:
    """A description of a grid: ``"patches of 16 pixels: 6 layers of 14×14; patch_size=4 shows other layers"``.

    Args:
        grids: of the module.
        grid: one of them.
        layers: number of layers that attend among its patches.
    """
    count = f"{layers} layer{'s' if layers > 1 else ''} of {grid.rows}×{grid.columns}"
    others = sorted({each.patch for each in grids if each.patch != grid.patch})
    more = f"; patch_size={' or '.join(map(_pixels, others))} shows other layers" if others else ""
    return f"patches of {_pixels(grid.patch)} pixels: {count}{more}"


def _pixels(patch: Size) -> str:
    return str(patch[0]) if patch[0] == patch[1] else str(patch)


def grid_of(count: int, size: Size) -> Size | None:
    """Rows and columns of ``count`` patches on an image of this height and width; None if they form no grid."""
    height, width = size
    for rows in range(1, count + 1):
        columns, rest = divmod(count, rows)
        if not rest and abs(rows * width / (columns * height) - 1) < MAX_ASPECT_ERROR:
            return (rows, columns) if not height % rows and not width % columns else None
    return None
