"""See what a Vision Transformer attends to, on your own image.

import vitviz

model = vitviz.load()
analysis = vitviz.analyze("cat.jpg", model)
analysis.predictions(5)
analysis.rollout(head_fusion="max", discard_ratio=0.9).overlay().save("rollout.png")
"""

from vitviz.analysis import Analysis, Prediction, analyze, cost
from vitviz.attribution import METHODS
from vitviz.batches import analyze_batch
from vitviz.config import ViTConfig
from vitviz.costs import Cost
from vitviz.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    ImageError,
    LimitError,
    MethodError,
    QueryError,
    VitvizError,
)
from vitviz.heatmaps import Heatmap, Style
from vitviz.images import open_image
from vitviz.layout import TokenLayout
from vitviz.preprocessing import Geometry, Preprocessing
from vitviz.token_map import TokenMap
from vitviz.trace import AttentionTrace
from vitviz.vit import VisionTransformer
from vitviz.weights import Model, load, open_step, save_checkpoint

__version__ = "0.1.0"

__all__ = [
    "METHODS",
    "Analysis",
    "AttentionTrace",
    "CheckpointError",
    "ConfigError",
    "Cost",
    "DataError",
    "Geometry",
    "Heatmap",
    "ImageError",
    "LimitError",
    "MethodError",
    "Model",
    "Prediction",
    "Preprocessing",
    "QueryError",
    "Style",
    "TokenLayout",
    "TokenMap",
    "ViTConfig",
    "VisionTransformer",
    "VitvizError",
    "analyze",
    "analyze_batch",
    "cost",
    "load",
    "open_image",
    "open_step",
    "save_checkpoint",
]
