"""See what a Vision Transformer attends to, on your own image.

import vitviz

model = vitviz.load()
analysis = vitviz.analyze("cat.jpg", model)
analysis.predictions(5)
analysis.rollout(head_fusion="max", discard_ratio=0.9).overlay().save("rollout.png")
"""

from importlib import import_module as _import_module
from importlib.util import find_spec as _find_spec
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from vitviz.analysis.analysis import Analysis, Prediction
from vitviz.analysis.batches import FailedAnalysis, analyze_batch
from vitviz.analysis.costs import Cost
from vitviz.analysis.encoder import analyze, cost
from vitviz.analysis.likeness import likeness
from vitviz.attention.layout import TokenLayout
from vitviz.attention.token_map import TokenMap
from vitviz.attention.trace import AttentionTrace
from vitviz.attribution import METHODS
from vitviz.errors.kinds import (
    CheckpointError,
    ConfigError,
    DataError,
    ImageError,
    LimitError,
    MethodError,
    QueryError,
    UnknownFamilyError,
    VitvizError,
)
from vitviz.images.geometry import Geometry
from vitviz.images.opening import open_image
from vitviz.images.preprocessing import Preprocessing
from vitviz.models.config import ViTConfig
from vitviz.models.targets import Target, contrast, margin
from vitviz.models.vit import VisionTransformer
from vitviz.visualization.heatmaps import Heatmap, Style
from vitviz.weights import Model, load, open_snapshot, save_checkpoint

if _TYPE_CHECKING:
    from vitviz import evaluation as evaluation
    from vitviz import ui as ui
    from vitviz.ui.explorer.inline import explore

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
    "Target",
    "TokenLayout",
    "TokenMap",
    "UnknownFamilyError",
    "ViTConfig",
    "VisionTransformer",
    "VitvizError",
    "analyze",
    "analyze_batch",
    "contrast",
    "cost",
    "explore",
    "likeness",
    "load",
    "margin",
    "open_image",
    "open_snapshot",
    "save_checkpoint",
]


# Functions whose modules take long to import.
_LAZY = {"explore": "vitviz.ui.explorer.inline"}


def __getattr__(name: str) -> _Any:
    """A subpackage, such as ``vitviz.evaluation`` or ``vitviz.ui``, imported when it is first used.

    Some take long to import, or need optional packages.
    """
    if name in _LAZY:
        return getattr(_import_module(_LAZY[name]), name)
    if name.startswith("_") or _find_spec(f"{__name__}.{name}") is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name, obj=_import_module(__name__))
    return _import_module(f"{__name__}.{name}")
