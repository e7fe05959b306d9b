"""One image and one model: :class:`Analysis` answers every question about them.

How an image gets there, in batches and within bounds, and what it costs. Tables over many images are in
``evaluation``.
"""

from vitviz.analysis.analysis import Analysis, Prediction
from vitviz.analysis.batches import FailedAnalysis, analyze_batch
from vitviz.analysis.cache import AnalysisCache, ModelCache
from vitviz.analysis.costs import Cost
from vitviz.analysis.encoder import Encoder, analyze, cost

__all__ = [
    "Analysis",
    "AnalysisCache",
    "Cost",
    "Encoder",
    "FailedAnalysis",
    "ModelCache",
    "Prediction",
    "analyze",
    "analyze_batch",
    "cost",
]
