"""A figure of the measures of heads."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vitviz.evaluation.head_table import MEASURES
from vitviz.visualization.drawing import OwnFigure, own_settings

COLOURS = matplotlib.colormaps["tab10"]
# More numbers along an axis would run together.
MAX_TICKS = 16


@own_settings()
def heads_picture(measures: Mapping[str, torch.Tensor]) -> Figure:
    """Measures ``"image layer head"`` by layer: a dot for each head, its bar the standard deviation over images."""
    figure = OwnFigure(figsize=(4 * len(measures), 3.2), layout="constrained")
    for axes, (name, values) in zip(np.atleast_1d(figure.subplots(1, len(measures))), measures.items(), strict=True):
        # A NaN draws no dot.
        mean = values.nanmean(0)
        spread = (values - mean).square().nanmean(0).sqrt()
        draw_heads(axes, mean.numpy(), spread.expand(2, -1, -1).numpy(), MEASURES[name].unit)
        axes.set(title=MEASURES[name].title, ylim=(0, None))
    return figure


def draw_heads(axes: Axes, means: np.ndarray, errors: np.ndarray, unit: str) -> None:
    """Draw a dot with its bar for each head by layer.

    Args:
        axes: to draw into.
        means: ``"layer head"``.
        errors: ``"side layer head"``, the length of the bars below and above the dots.
        unit: of the values.
    """
    layers, heads = means.shape
    for head in range(heads):
        positions = np.arange(layers) + 0.7 * ((head + 0.5) / heads - 0.5)
        style: dict[str, Any] = {"fmt": "o", "markersize": 3.5, "elinewidth": 1, "color": COLOURS(head % COLOURS.N)}
        axes.errorbar(positions, means[:, head], errors[:, :, head], label=str(head), **style)
    axes.set(xlabel="layer", ylabel=unit, xticks=range(0, layers, math.ceil(layers / MAX_TICKS)))
    axes.spines[["top", "right"]].set_visible(False)
