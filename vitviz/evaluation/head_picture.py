"""A figure of the measures of heads."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib
import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from vitviz.evaluation.head_table import MEASURES
from vitviz.visualization.drawing import own_settings

COLOURS = matplotlib.colormaps["tab10"]


@own_settings()
def heads_picture(measures: Mapping[str, torch.Tensor]) -> Figure:
    """Measures ``"image layer head"`` by layer: a dot for each head, its bar the standard deviation over images."""
    figure = Figure(figsize=(4 * len(measures), 3.2), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, (name, values) in zip(np.atleast_1d(figure.subplots(1, len(measures))), measures.items(), strict=True):
        # A NaN draws no dot.
        mean = values.nanmean(0)
        spread = (values - mean).square().nanmean(0).sqrt()
        layers, heads = mean.shape
        for head in range(heads):
            positions = np.arange(layers) + 0.6 * ((head + 0.5) / heads - 0.5)
            style = {"fmt": "o", "markersize": 3.5, "elinewidth": 0.8, "color": COLOURS(head % COLOURS.N)}
            axes.errorbar(positions, mean[:, head], spread[:, head], **style)
        measure = MEASURES[name]
        axes.set(title=measure.title, xlabel="layer", ylabel=measure.unit, xticks=range(layers), ylim=(0, None))
        axes.spines[["top", "right"]].set_visible(False)
    return figure
