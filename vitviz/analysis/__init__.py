"""One image and one model: :class:`Analysis` answers every question about them.

This package also encodes images in batches, caches analyses and models, and computes what an analysis costs. Tables
over many images are in ``evaluation``.
"""

from vitviz.analysis.analysis import Analysis
from vitviz.analysis.batches import FailedAnalysis, analyze_batch
from vitviz.analysis.costs import Cost
from vitviz.analysis.encoder import Encoder, analyze, cost
from vitviz.analysis.predictions import Prediction, Predictions

__all__ = [
    "Analysis",
    "Cost",
    "Encoder",
    "FailedAnalysis",
    "Prediction",
    "Predictions",
    "analyze",
    "analyze_batch",
    "cost",
]
