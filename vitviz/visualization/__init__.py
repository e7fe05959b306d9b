"""Maps on the user's picture: heatmaps, and figures of many of them."""

from vitviz.visualization.heatmaps import Heatmap, Style
from vitviz.visualization.panels import figure
from vitviz.visualization.scales import SCALES, FittedScale, fit
from vitviz.visualization.sheets import Sheet

__all__ = ["SCALES", "FittedScale", "Heatmap", "Sheet", "Style", "figure", "fit"]
