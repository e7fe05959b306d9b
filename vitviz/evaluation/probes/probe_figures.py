"""Findings as figures; the axes of a measurement determine how it is drawn."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import chain

import numpy as np
import torch
from einops import rearrange
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure

from vitviz.attention.layout import TokenLayout
from vitviz.evaluation.head_picture import MAX_TICKS
from vitviz.evaluation.probes.findings import Findings, Measurement, step_name
from vitviz.visualization.drawing import OwnFigure, own_settings

COLUMNS, CELL_INCHES = 7, 1.5
# The most lines that a reader can distinguish.
MAX_LINES = 6
# The most positions per side of the grid in a sheet with one map per position, and the width of each map.
MAX_POSITIONS, POSITION_INCHES = 9, 0.8
# Lower end of a logarithmic scale, relative to its highest value.
LOG_FLOOR = 1e-3


def pictures(findings: Findings, layout: TokenLayout) -> dict[str, Figure]:
    """A figure for every measurement that can be drawn, by its name.

    Args:
        findings: findings of a probe.
        layout: order of the image's tokens.
    """
    figures = {}
    for name, measurement in findings.measurements.items():
        draw = DRAWINGS.get(measurement.axes)
        # Indices of tokens or classes are not a quantity that colours could show.
        if draw is not None and measurement.indexes is None:
            with own_settings("".join(chain.from_iterable(measurement.names.values()))):
                figures[name] = draw(measurement, layout)
    return figures


def cells_of(
    count: int, ratio: float = 1.0, columns: int = COLUMNS, inches: float = CELL_INCHES
) -> tuple[Figure, list[Axes]]:
    """A figure with ``count`` cells in rows, each ``ratio`` times as high as wide, without axes."""
    columns = min(columns, count)
    rows = math.ceil(count / columns)
    size = (inches * columns + 0.8, (inches * ratio + 0.3) * rows)
    figure = OwnFigure(figsize=size, layout="constrained")
    cells = list(np.atleast_1d(figure.subplots(rows, columns)).flat)
    for cell in cells:
        cell.set_axis_off()
    return figure, cells[:count]


def maps_figure(
    grids: torch.Tensor, titles: list[str], quantity: str, is_logarithmic: bool = False, inches: float = CELL_INCHES
) -> Figure:
    """Maps ``"map row column"`` on one scale, between the lowest and highest value of all, or 0 and 1 for booleans."""
    valid = grids[~grids.isnan()].float()
    ends = (0.0, 1.0) if grids.dtype == torch.bool else (float(valid.min()), float(valid.max()))
    norm: Normalize = Normalize(*ends)
    if is_logarithmic and ends[1] > 0:
        # The floor keeps zeros, which have no logarithm, on the scale.
        norm = LogNorm(max(ends[0], LOG_FLOOR * ends[1]), ends[1], clip=True)
    figure, cells = cells_of(len(grids), grids.shape[1] / grids.shape[2], inches=inches)
    for cell, grid, title in zip(cells, grids, titles, strict=True):
        cell.set_title(title, fontsize=8)
        cell.imshow(grid.float().numpy(), norm=norm, cmap="inferno")
    # Beside logarithms, matplotlib would write formulas, of which these figures show the source.
    figure.colorbar(
        cells[0].images[0],
        ax=cells,
        shrink=0.8,
        ticks=norm.inverse(np.linspace(0, 1, 5)) if is_logarithmic else None,
        format="{x:.3g}" if is_logarithmic else None,
    ).minorticks_off()
    figure.suptitle(quantity, fontsize=9)
    return figure


def _token_map(measurement: Measurement, layout: TokenLayout) -> Figure:
    return maps_figure(layout.grid(measurement.values)[None], [""], measurement.quantity)


def _maps_by_step(measurement: Measurement, layout: TokenLayout) -> Figure:
    grids = layout.grid(measurement.values)
    # A model that classifies its CLS token computes no patches in the last layer.
    valid_steps = [step for step, grid in enumerate(grids) if not grid.isnan().all()]
    is_logarithmic = measurement.quantity == "norm"
    return maps_figure(
        grids[valid_steps], [step_name(step) for step in valid_steps], measurement.quantity, is_logarithmic
    )


def _maps_by_layer(measurement: Measurement, layout: TokenLayout) -> Figure:
    grids = layout.grid(measurement.values.mean(1))
    titles = [f"layer {layer}" for layer in range(len(grids))]
    return maps_figure(grids, titles, f"{measurement.quantity}, mean of heads", is_logarithmic=True)


def _heads(measurement: Measurement, layout: TokenLayout) -> Figure:
    values = measurement.values.sum(-1) if measurement.values.ndim == 3 else measurement.values
    figure = OwnFigure(figsize=(0.45 * values.shape[1] + 2.2, 0.35 * values.shape[0] + 1), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(values.numpy(), cmap="viridis", aspect="auto")
    axes.set(xlabel="head", ylabel="layer", xticks=range(values.shape[1]), yticks=range(values.shape[0]))
    figure.colorbar(image, ax=axes)
    figure.suptitle(measurement.quantity, fontsize=9)
    return figure


def _head_pairs(measurement: Measurement, layout: TokenLayout) -> Figure:
    titles = [f"layer {layer}" for layer in range(len(measurement.values))]
    return maps_figure(measurement.values, titles, measurement.quantity)


def _lines(measurement: Measurement, layout: TokenLayout) -> Figure:
    """Lines over the steps for the positions of the other axis with the highest peaks, highest first."""
    axis = measurement.axes[1]
    positions = measurement.values.amax(0).topk(min(MAX_LINES, measurement.values.shape[1])).indices.tolist()
    names = measurement.names.get(axis)
    figure = OwnFigure(figsize=(7, 3.2), layout="constrained")
    axes = figure.subplots()
    for position in positions:
        label = f"{axis} {position}" if names is None else names[position].partition(",")[0]
        axes.plot(measurement.values[:, position].numpy(), marker="o", markersize=3, label=label)
    axes.set(ylabel=measurement.quantity, ylim=(0, None))
    steps = range(0, len(measurement.values), math.ceil(len(measurement.values) / MAX_TICKS))
    axes.set_xticks(steps, ["input", *(str(step - 1) for step in steps[1:])])
    axes.set_xlabel("after layer")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, frameon=False)
    return figure


def _colours(measurement: Measurement, layout: TokenLayout) -> Figure:
    height, width, _ = measurement.values.shape
    figure = OwnFigure(figsize=(4, 4 * height / width))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.imshow(measurement.values.numpy(), aspect="auto")
    return figure


def _filters(measurement: Measurement, layout: TokenLayout) -> Figure:
    values = measurement.values
    figure, cells = cells_of(len(values), values.shape[2] / values.shape[3])
    for number, (cell, pattern) in enumerate(zip(cells, values, strict=True)):
        highest = float(pattern.abs().max())
        # Zero is the same grey in every filter. Only three channels can be drawn in colour.
        levels = (pattern / highest + 1) / 2 if highest > 0 else torch.full_like(pattern, 0.5)
        is_coloured = len(pattern) == 3
        image = levels.permute(1, 2, 0) if is_coloured else levels.mean(0)
        cell.imshow(image.numpy(), cmap="gray", vmin=0, vmax=1)
        cell.set_title(str(number), fontsize=8)
    return figure


def _positions(measurement: Measurement, layout: TokenLayout) -> Figure:
    """A map of the whole grid for each position, or for equally spaced ones of a large grid, with gaps between them."""
    values = measurement.values
    rows, columns = (torch.linspace(0, side - 1, min(side, MAX_POSITIONS)).round().long() for side in values.shape[:2])
    apart = torch.nn.functional.pad(values[rows][:, columns], (0, 1, 0, 1), value=torch.nan)
    grid = rearrange(apart, "row column height width -> 1 (row height) (column width)")
    return maps_figure(grid, [""], measurement.quantity, inches=POSITION_INCHES * len(columns))


DRAWINGS: Mapping[tuple[str, ...], Callable[[Measurement, TokenLayout], Figure]] = {
    ("token",): _token_map,
    ("step", "token"): _maps_by_step,
    ("layer", "head", "token"): _maps_by_layer,
    ("layer", "head"): _heads,
    ("layer", "head", "prefix"): _heads,
    ("layer", "head", "other head"): _head_pairs,
    ("step", "class"): _lines,
    ("step", "feature"): _lines,
    ("row", "column", "channel"): _colours,
    ("component", "channel", "row", "column"): _filters,
    ("row", "column", "other row", "other column"): _positions,
}
"""The functions that draw measurements, by their axes."""
