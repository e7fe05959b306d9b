"""A heatmap in axes of matplotlib: its colours as an image, its grid and mark as vectors."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from vitviz.errors.arguments import instance
from vitviz.errors.kinds import MethodError
from vitviz.visualization.captioned import FONT_SIZE, draw_bar, end_texts
from vitviz.visualization.overlays import (
    GRID_OPACITY,
    GRID_STROKE,
    MARK_STROKE,
    grid_lines,
    marked_rectangle,
    overlay,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from vitviz.visualization.heatmaps import Heatmap, Style

POINTS_PER_INCH = 72
# Of the user's axes: the gap to the colour bar below them, and its height, as shares of their height.
BAR_GAP, BAR_HEIGHT = 0.03, 0.03


def draw_map(axes: Axes, heatmap: Heatmap, style: Style, mark: tuple[int, int] | None) -> Figure:
    """Draw a heatmap into axes, one unit for each of its pixels; returns their figure, also of those in a subfigure.

    Raises:
        QueryError: the map has no such patch.
    """
    from matplotlib.collections import LineCollection
    from matplotlib.patches import Rectangle
    from matplotlib.patheffects import withStroke

    columns_px, rows_px = heatmap.image.size
    picture = overlay(heatmap, replace(style, grid=False))
    # The user may have set that other pictures begin below, or are stretched.
    axes.imshow(
        picture, extent=(0, columns_px, rows_px, 0), interpolation="antialiased", origin="upper", aspect="equal"
    )
    figure = axes.get_figure(root=True)
    assert figure is not None, "axes are removed from their figure only after they were drawn into"
    longest_side = POINTS_PER_INCH * max(axes.get_window_extent().size) / figure.dpi
    if style.grid:
        stroke, alpha = GRID_STROKE * longest_side, GRID_OPACITY / 255
        axes.add_collection(LineCollection(grid_lines(heatmap), colors="white", alpha=alpha, linewidths=stroke))
    if mark is not None:
        left, top, right, bottom = marked_rectangle(heatmap, mark)
        patch = Rectangle((left, top), right - left, bottom - top, fill=False, edgecolor="white")
        stroke = MARK_STROKE * longest_side
        # White with a black border is visible on every colour.
        patch.set(linewidth=stroke, path_effects=[withStroke(linewidth=3 * stroke, foreground="black")])
        axes.add_patch(patch)
    axes.set(xlim=(0, columns_px), ylim=(rows_px, 0))
    axes.axis("off")
    return figure


def draw_into(axes: Axes, heatmap: Heatmap, style: Style, mark: tuple[int, int] | None) -> Figure:
    """Draw a heatmap and, below it, its colour bar into the user's axes; returns their figure.

    Raises:
        MethodError: these are no axes.
        QueryError: the map has no such patch.
    """
    from matplotlib.axes import Axes

    figure = draw_map(instance("ax", axes, Axes, "axes[0]", MethodError), heatmap, style, mark)
    scale = heatmap.scale(style)
    bar = axes.inset_axes((0, -BAR_GAP - BAR_HEIGHT, 1, BAR_HEIGHT))
    draw_bar(bar, style.colours(scale.signed))
    low, high = end_texts(scale.ends, scale.beyond(heatmap.values))
    for x, side, text in (
        (0, "left", low),
        # Below a tall picture, which is often narrow, both would run together on one line.
        (1, "right", "\n" * (heatmap.image.height > heatmap.image.width) + high),
    ):
        bar.text(x, -0.3, text, ha=side, va="top", transform=bar.transAxes, fontsize=FONT_SIZE)
    return figure
