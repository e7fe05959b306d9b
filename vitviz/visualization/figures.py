"""Many maps as one picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from vitviz.errors.kinds import QueryError
from vitviz.visualization.heatmaps import Heatmap, Style
from vitviz.visualization.scales import FittedScale, fit

INK = "#7b7f87"
# A power of two: a whole number of pixels is then the same number again after its way through inches.
DPI = 128


@dataclass(frozen=True)
class SheetLayout:
    """Where the cells of a sheet lie in its picture, in pixels.

    Args:
        rows, columns: layers and heads.
        left, top: of the first cell.
        cell_width, cell_height: of a cell, with the gap to the next.
        gap: between cells.
    """

    rows: int
    columns: int
    left: int
    top: int
    cell_width: int
    cell_height: int
    gap: int

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the picture."""
        return self.left + self.columns * self.cell_width, self.top + self.rows * self.cell_height

    def corner(self, row: int, column: int) -> tuple[int, int]:
        """Left and top of a cell."""
        return self.left + column * self.cell_width, self.top + row * self.cell_height


def sheet(
    heatmaps: Sequence[Sequence[Heatmap]],
    style: Style | None = None,
    shared_scale: bool = False,
    cell: int = 110,
) -> tuple[Image.Image, SheetLayout]:
    """All layers (rows) and heads (columns) in one picture with a transparent background.

    Args:
        heatmaps: one row per layer, one heatmap per head, all on one image.
        style: of every cell.
        shared_scale: the style's scale fitted to all cells together instead of to each cell.
        cell: longest side of a cell in pixels.

    Returns:
        The picture, RGBA, and where its cells lie.

    Raises:
        QueryError: there is no heatmap, the rows differ in length, or the maps are not of one image.
    """
    if not heatmaps or not heatmaps[0] or len({len(row) for row in heatmaps}) != 1:
        raise QueryError(f"sheet of rows with {[len(row) for row in heatmaps]} maps: expected rows of one length")
    first = heatmaps[0][0]
    if any(each.image is not first.image or each.geometry != first.geometry for row in heatmaps for each in row):
        raise QueryError("sheet of maps on several images: expected maps on one")
    style = style or Style()
    if shared_scale and not isinstance(style.scale, FittedScale):
        style = _with_shared_scale(style, [heatmap for row in heatmaps for heatmap in row])
    # Done once: in every cell it would take seconds for a large photo.
    small = first.resized(cell)
    cells = [[replace(small, token_map=heatmap.token_map).overlay(style) for heatmap in row] for row in heatmaps]
    width, height = small.image.size
    layout = SheetLayout(len(cells), len(cells[0]), 56, 52, width + 4, height + 4, 4)

    picture = _named_cells(layout).copy()
    for row, pictures in enumerate(cells):
        for column, cell_picture in enumerate(pictures):
            picture.paste(cell_picture, layout.corner(row, column))
    return picture, layout


def _with_shared_scale(style: Style, heatmaps: Sequence[Heatmap]) -> Style:
    """A style with its scale fitted to several maps together."""
    assert not isinstance(style.scale, FittedScale)
    signed = any(heatmap.token_map.signed for heatmap in heatmaps)
    values = [heatmap.values for heatmap in heatmaps]
    ends = {"low": style.low, "high": style.high}
    return replace(
        style,
        scale=fit(style.scale, values, percentiles=style.percentiles, signed=signed, **ends),
        low=None,
        high=None,
    )


@lru_cache(maxsize=64)
def _named_cells(layout: SheetLayout) -> Image.Image:
    """A transparent picture of a sheet's size, with the numbers of layers and heads beside the cells, from 0.

    The same for all sheets of a model and the shape of a picture.
    """
    figure = Figure((layout.size[0] / DPI, layout.size[1] / DPI), dpi=DPI)
    canvas = FigureCanvasAgg(figure)
    figure.patch.set_alpha(0)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, layout.size[0]), ylim=(layout.size[1], 0))
    axes.axis("off")
    width, height = layout.cell_width - layout.gap, layout.cell_height - layout.gap
    for row in range(layout.rows):
        middle = layout.corner(row, 0)[1] + height / 2
        axes.text(layout.left - 8, middle, str(row), ha="right", va="center", color=INK, fontsize=12)
    for column in range(layout.columns):
        middle = layout.corner(0, column)[0] + width / 2
        axes.text(middle, layout.top - 6, str(column), ha="center", va="bottom", color=INK, fontsize=12)
    middle_x, middle_y = (layout.size[0] + layout.left) / 2, (layout.size[1] + layout.top) / 2
    axes.text(middle_x, 4, "head", ha="center", va="top", color=INK, fontsize=12)
    axes.text(4, middle_y, "layer", ha="left", va="center", rotation=90, color=INK, fontsize=12)
    canvas.draw()
    return Image.fromarray(np.asarray(canvas.buffer_rgba()))
