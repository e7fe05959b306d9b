"""A map on the user's picture: heatmaps and their scales."""

from vitviz.visualization.heatmaps import Heatmap, Style
from vitviz.visualization.scales import SCALES, FittedScale, fit

__all__ = ["SCALES", "FittedScale", "Heatmap", "Style", "fit"]
