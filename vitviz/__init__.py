"""See what a Vision Transformer attends to, on your own image.

import vitviz

model = vitviz.load()
analysis = vitviz.analyze("cat.jpg", model)
analysis.predictions(5)
analysis.rollout(head_fusion="max", discard_ratio=0.9).overlay().save("rollout.png")
"""

from importlib import import_module as _import_module
from importlib.util import find_spec as _find_spec
from types import ModuleType as _ModuleType
from typing import TYPE_CHECKING as _TYPE_CHECKING

from vitviz.analysis import Analysis, Prediction
from vitviz.attribution import METHODS
from vitviz.batches import FailedAnalysis, analyze_batch
from vitviz.config import ViTConfig
from vitviz.costs import Cost
from vitviz.encoder import analyze, cost
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
from vitviz.geometry import Geometry
from vitviz.heatmaps import Heatmap, Style
from vitviz.images import open_image
from vitviz.layout import TokenLayout
from vitviz.preprocessing import Preprocessing
from vitviz.token_map import TokenMap
from vitviz.trace import AttentionTrace
from vitviz.vit import VisionTransformer
from vitviz.weights import Model, load, open_step, save_checkpoint

if _TYPE_CHECKING:
    from vitviz import comparison as comparison
    from vitviz import randomisation as randomisation
    from vitviz import targets as targets
    from vitviz import text as text
    from vitviz import ui as ui

__version__ = "0.1.0"

__all__ = [
    "METHODS",
    "Analysis",
    "AttentionTrace",
    "CheckpointError",
    "ConfigError",
    "Cost",
    "DataError",
    "FailedAnalysis",
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


def __getattr__(name: str) -> _ModuleType:
    """A module of the package, imported when it is first asked for: ``vitviz.text``, ``vitviz.ui`` and all others.

    Most of them take long, or need what not everybody has installed.
    """
    if name.startswith("_") or _find_spec(f"{__name__}.{name}") is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name, obj=_import_module(__name__))
    return _import_module(f"{__name__}.{name}")
