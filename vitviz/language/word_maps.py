"""Numbers of a picture's tokens as a map on the user's pixels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image

from vitviz.attention.token_map import TokenMap
from vitviz.caching import cached_property
from vitviz.errors.kinds import QueryError
from vitviz.images.geometry import Geometry
from vitviz.visualization.heatmaps import Heatmap

# The most by which an edge of a token's part may lie off that of a cell, in parts of a cell.
OFF_GRID = 0.2
# The most cells along a side of a grid that is not the tokens' own.
MAX_CELLS = 128
Axis = tuple[float, float, torch.Tensor]
"""Where the cells along one side of a picture begin and end, in pixels, and ``"token cell"``, how each token's part is
shared by them."""


@dataclass(frozen=True, eq=False)
class PictureGrid:
    """The tokens of one picture, and the cells of its maps.

    Args:
        image: RGB.
        index: ``"token"``, numbers among the keys that the decoder reads.
        boxes: ``"token edge"``, the parts of the picture that they stand for: left, top, right and bottom in pixels.
    """

    image: Image.Image
    index: torch.Tensor
    boxes: torch.Tensor

    def cells(self, values: torch.Tensor) -> torch.Tensor:
        """``"row column"`` of values of all keys: that of each token of the picture is spread evenly over its part."""
        (*_, columns), (*_, rows) = self._axes
        return torch.einsum("t, tr, tc -> rc", values.double().cpu()[self.index], rows, columns).float()

    def heatmap(self, cells: torch.Tensor, quantity: str, description: str) -> Heatmap:
        """Values of the cells as a map on the picture."""
        return Heatmap(TokenMap(cells, {}, quantity, description, (0.0, math.inf)), self.image, self.geometry)

    @cached_property
    def geometry(self) -> Geometry:
        """Where the cells lie on the picture."""
        (left, right, columns), (top, bottom, rows) = self._axes
        return Geometry(*self.image.size, (left, top, right, bottom), rows.shape[1], columns.shape[1])

    @cached_property
    def _axes(self) -> tuple[Axis, Axis]:
        """Of columns and of rows."""
        areas = (self.boxes[:, 2:] - self.boxes[:, :2]).prod(1)
        # Of tiles beside a thumbnail, the tiles.
        is_finest = areas <= 1.5 * areas.median()
        width, height = self.image.size
        return _axis(self.boxes[:, 0::2].T, is_finest, width), _axis(self.boxes[:, 1::2].T, is_finest, height)


def painted(picture: Image.Image, geometry: Geometry, cells: Sequence[tuple[int, int]]) -> Image.Image:
    """A picture with cells ``(row, column)`` of a grid in its mean colour.

    Raises:
        QueryError: there is no such cell.
    """
    found, rows, columns = picture.copy(), geometry.input_height, geometry.input_width
    red, green, blue = np.asarray(picture).mean((0, 1)).round().astype(int).tolist()
    for row, column in cells:
        if not (0 <= row < rows and 0 <= column < columns):
            raise QueryError(f"patch {(row, column)}: this picture has (0, 0) to ({rows - 1}, {columns - 1})")
        left, top, right, bottom = map(round, geometry.patch_rectangle(row, column, rows, columns))
        found.paste((red, green, blue), (left, top, right, bottom))
    return found


def _axis(edges: torch.Tensor, is_finest: torch.Tensor, length: int) -> Axis:
    """The tokens' own cells where the finest ones fill one each; others, of half the smallest one, on the whole side.

    Args:
        edges: ``"2 token"``, where the tokens begin and end along this side, in pixels.
        is_finest: ``"token"``, whether cells may be made for them.
        length: of the side in pixels.
    """
    sides = edges[1] - edges[0]
    start, stop = float(edges[0, is_finest].min()), float(edges[1, is_finest].max())
    count = round((stop - start) / float(sides[is_finest].median()))
    places = _snapped((edges - start) * count / (stop - start))
    low, high = places[:, is_finest]
    is_own = torch.equal(low, low.round()) and torch.equal(high, low + 1)
    if not is_own or bool((places < 0).any()) or bool((places > count).any()):
        start, stop, count = 0.0, float(length), min(MAX_CELLS, round(2 * length / float(sides.min())))
        places = _snapped(edges * count / length)
    (low, high), cells = places[..., None], torch.arange(count, dtype=places.dtype)
    shares = (torch.minimum(high, cells + 1) - torch.maximum(low, cells)).clamp(min=0)
    return start, stop, shares / shares.sum(1, keepdim=True)


def _snapped(places: torch.Tensor) -> torch.Tensor:
    """Edges in cells, ``"2 token"``; what is measured lies off the edges of cells by a fraction of a pixel."""
    snapped = places.where((places - places.round()).abs() > OFF_GRID, places.round())
    return snapped.where(snapped[0] < snapped[1], places)
