"""A map on the user's picture: heatmaps, and figures of many of them.

``figures`` needs matplotlib, and is imported by its own name.
"""

from vitviz.visualization.heatmaps import Heatmap, Style

__all__ = ["Heatmap", "Style"]
