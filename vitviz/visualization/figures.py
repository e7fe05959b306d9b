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
from vitviz.visualization.drawing import own_settings
from vitviz.visualization.heatmaps import Heatmap, Style
from vitviz.visualization.scales import FittedScale, fit

INK = "#7b7f87"
# A power of two, so that a whole number of pixels survives the conversion to inches and back.
DPI = 128


@dataclass(frozen=True)
class SheetLayout:
    """The positions of a sheet's cells in its picture, in pixels.

    Args:
        rows, columns: number of layers and heads.
        left, top: corner of the first cell.
        cell_width, cell_height: size of a cell, including the gap to the next.
        gap: gap between cells.
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
        """The left and top of a cell."""
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
        style: style of every cell.
        shared_scale: whether to fit the style's scale to all cells together instead of to each.
        cell: longest side of a cell in pixels.

    Returns:
        The picture, RGBA, and the layout of its cells.

    Raises:
        QueryError: there is no heatmap, the rows differ in length, or the maps belong to several images.
    """
    if not heatmaps or not heatmaps[0] or len({len(row) for row in heatmaps}) != 1:
        raise QueryError(f"sheet of rows with {[len(row) for row in heatmaps]} maps: expected rows of one length")
    first = heatmaps[0][0]
    maps = [heatmap for row in heatmaps for heatmap in row]
    if any(heatmap.image is not first.image or heatmap.geometry != first.geometry for heatmap in maps):
        raise QueryError("sheet of maps on several images: expected maps on one")
    style = style or Style()
    if shared_scale and not isinstance(style.scale, FittedScale):
        style = _with_shared_scale(style, maps)
    # Resized once, since it would take seconds to do in every cell of a large photo.
    small = first.resized(cell)
    cells = [[replace(small, token_map=heatmap.token_map).overlay(style) for heatmap in row] for row in heatmaps]
    width, height = small.image.size
    layout = SheetLayout(len(cells), len(cells[0]), 56, 52, width + 4, height + 4, 4)

    picture = _blank_sheet(layout).copy()
    for row, pictures in enumerate(cells):
        for column, cell_picture in enumerate(pictures):
            picture.paste(cell_picture, layout.corner(row, column))
    return picture, layout


def _with_shared_scale(style: Style, heatmaps: Sequence[Heatmap]) -> Style:
    """The style with its scale fitted to all maps together."""
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
@own_settings()
def _blank_sheet(layout: SheetLayout) -> Image.Image:
    """A transparent picture of a sheet's size, with the numbers of layers and heads beside the cells.

    Cached, since all sheets of a model have the same for pictures of one shape.
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
