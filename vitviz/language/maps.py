"""Numbers of a picture's tokens as a map on the user's pixels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from PIL import Image

from vitviz.attention.token_map import TokenMap
from vitviz.errors.kinds import QueryError
from vitviz.images.geometry import Geometry
from vitviz.language.places import TokenBoxes
from vitviz.visualization.heatmaps import Heatmap

# The most by which an edge or a side may differ from that of a grid, in parts of a cell.
OFF_GRID = 0.2
# The most cells along a side of a grid that is not the tokens' own.
MAX_CELLS = 128


@dataclass(frozen=True, eq=False)
class PictureGrid:
    """The cells of one picture's maps, and how much of each token lies in each.

    Args:
        image: RGB.
        tokens: of this picture.
    """

    image: Image.Image
    tokens: TokenBoxes

    def cells(self, values: torch.Tensor) -> torch.Tensor:
        """``"row column"`` that add up to the sum of the values ``"token"``: each is spread evenly over its part."""
        return torch.einsum("t, tr, tc -> rc", values.double().cpu(), *self._spread).float()

    def heatmap(self, cells: torch.Tensor, quantity: str, description: str) -> Heatmap:
        """Values of the cells as a map on the picture."""
        token_map = TokenMap(cells, {}, quantity, description, (0.0, math.inf))
        return Heatmap(token_map, self.image, Geometry(*self.image.size, self.box, *cells.shape))

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of cells."""
        rows, columns = self._spread
        return rows.shape[1], columns.shape[1]

    @property
    def box(self) -> tuple[float, float, float, float]:
        """The part of the picture that the cells cover, in pixels."""
        (left, right, _), (top, bottom, _) = self._axes
        return left, top, right, bottom

    @cached_property
    def _axes(self) -> tuple[tuple[float, float, int], tuple[float, float, int]]:
        """Along each axis, where the cells begin and end, and how many there are."""
        boxes = self.tokens.boxes.double()
        sides = boxes[:, 2:] - boxes[:, :2]
        # Of tiles beside a thumbnail, the tiles.
        finest = boxes[sides.prod(1) <= 1.5 * sides.prod(1).median()]
        across, down = (_cells(finest[:, place], finest[:, place + 2]) for place in (0, 1))
        if across is not None and down is not None and across[2] * down[2] <= len(finest):
            # No token reaches beyond them.
            kept = [boxes[:, place].clamp(*axis[:2]) for place, axis in enumerate((across, down, across, down))]
            if bool(((torch.stack(kept, 1) - boxes).abs() <= OFF_GRID * sides.median(0).values.repeat(2)).all()):
                return across, down
        smallest = sides.clamp(min=1).amin(0).tolist()
        size = self.image.size
        counts = [min(MAX_CELLS, max(1, round(2 * side / cell))) for side, cell in zip(size, smallest, strict=True)]
        return (0.0, float(size[0]), counts[0]), (0.0, float(size[1]), counts[1])

    @cached_property
    def _spread(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The share of each token's height in each row, and of its width in each column, ``"token cell"``."""
        across, down = self._axes
        boxes = self.tokens.boxes.double()
        return _overlaps(boxes[:, 1], boxes[:, 3], *down), _overlaps(boxes[:, 0], boxes[:, 2], *across)


def painted(
    picture: Image.Image, shape: Sequence[int], box: tuple[float, float, float, float], cells: Sequence[tuple[int, int]]
) -> Image.Image:
    """A picture with cells ``(row, column)`` of a grid in its mean colour.

    Raises:
        QueryError: there is no such cell.
    """
    found, (rows, columns) = picture.copy(), shape
    geometry = Geometry(*picture.size, box, rows, columns)
    red, green, blue = np.asarray(picture).mean((0, 1)).round().astype(int).tolist()
    for row, column in cells:
        if not (0 <= row < rows and 0 <= column < columns):
            raise QueryError(f"patch {(row, column)}: this picture has (0, 0) to ({rows - 1}, {columns - 1})")
        left, top, right, bottom = map(round, geometry.patch_rectangle(row, column, rows, columns))
        found.paste((red, green, blue), (left, top, right, bottom))
    return found


def _cells(low: torch.Tensor, high: torch.Tensor) -> tuple[float, float, int] | None:
    """Where equal cells begin and end along an axis, and their number, if parts from ``low`` to ``high`` are these."""
    start, stop = float(low.min()), float(high.max())
    count = max(1, round((stop - start) / max(1e-3, float((high - low).median()))))
    cell = (stop - start) / count
    number = ((low + high) / 2 - start).div(cell).floor().clamp(0, count - 1)
    off = torch.stack([low - (start + number * cell), high - (start + (number + 1) * cell)]).abs()
    is_grid = bool((off <= OFF_GRID * cell).all()) and len(number.unique()) == count
    return (start, stop, count) if is_grid else None


def _overlaps(low: torch.Tensor, high: torch.Tensor, start: float, stop: float, count: int) -> torch.Tensor:
    cell = (stop - start) / count
    # What is measured lies off the edges of cells by a fraction of a pixel.
    low, high = (((each - start) / cell).clamp(0, count) for each in (low, high))
    low, high = (torch.where((each - each.round()).abs() <= OFF_GRID, each.round(), each) for each in (low, high))
    edges = torch.arange(count, dtype=low.dtype)
    shares = (torch.minimum(high[:, None], edges + 1) - torch.maximum(low[:, None], edges)).clamp(min=0)
    total = shares.sum(1, keepdim=True)
    nearest = torch.nn.functional.one_hot(((low + high) / 2).floor().long().clamp(0, count - 1), count).to(low)
    return torch.where(total > 0, shares / total.clamp(min=1e-9), nearest)
