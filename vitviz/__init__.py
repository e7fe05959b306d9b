"""See what a Vision Transformer attends to, on your own image.

import vitviz

model = vitviz.load()
analysis = vitviz.analyze("cat.jpg", model)
analysis.predictions(5)
analysis.rollout(head_fusion="max", discard_ratio=0.9).overlay().save("rollout.png")
"""

import typing as _typing
from importlib import import_module as _import_module
from importlib.util import find_spec as _find_spec
from pkgutil import iter_modules as _iter_modules

if _typing.TYPE_CHECKING:
    from vitviz import analysis as analysis
    from vitviz import attention as attention
    from vitviz import attribution as attribution
    from vitviz import callbacks as callbacks
    from vitviz import datasets as datasets
    from vitviz import errors as errors
    from vitviz import evaluation as evaluation
    from vitviz import features as features
    from vitviz import images as images
    from vitviz import language as language
    from vitviz import metrics as metrics
    from vitviz import models as models
    from vitviz import progress as progress
    from vitviz import training as training
    from vitviz import ui as ui
    from vitviz import video as video
    from vitviz import visualization as visualization
    from vitviz import weights as weights
    from vitviz.analysis.analysis import Analysis
    from vitviz.analysis.batches import FailedAnalysis, analyze_batch
    from vitviz.analysis.costs import Cost
    from vitviz.analysis.encoder import analyze, cost
    from vitviz.analysis.likeness import likeness
    from vitviz.analysis.predictions import Prediction
    from vitviz.attention.layout import TokenLayout
    from vitviz.attention.token_map import TokenMap
    from vitviz.attention.trace import AttentionTrace
    from vitviz.attribution import METHODS
    from vitviz.datasets.batch import run_batch
    from vitviz.datasets.loader import analyze_loader
    from vitviz.datasets.readers import read_items
    from vitviz.datasets.request import BatchRequest, MapRequest
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
    from vitviz.features.components import components
    from vitviz.features.matching import clusters, matches
    from vitviz.images.geometry import Geometry
    from vitviz.images.opening import open_image
    from vitviz.images.preprocessing import Preprocessing
    from vitviz.language.answers import Answer
    from vitviz.language.asking import ask
    from vitviz.models.config import ViTConfig
    from vitviz.models.targets import Target, contrast, margin
    from vitviz.models.vit import VisionTransformer
    from vitviz.ui.explorer.inline import explore
    from vitviz.video.film import film
    from vitviz.visualization.heatmaps import Heatmap, Style
    from vitviz.visualization.panels import figure
    from vitviz.weights import Model, list_models, load, open_snapshot, save_checkpoint
    from vitviz.weights.language_model import LanguageModel

__version__ = "0.1.0"

__all__ = [
    "METHODS",
    "Analysis",
    "Answer",
    "AttentionTrace",
    "BatchRequest",
    "CheckpointError",
    "ConfigError",
    "Cost",
    "DataError",
    "FailedAnalysis",
    "Geometry",
    "Heatmap",
    "ImageError",
    "LanguageModel",
    "LimitError",
    "MapRequest",
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
    "analyze_loader",
    "ask",
    "clusters",
    "components",
    "contrast",
    "cost",
    "explore",
    "figure",
    "film",
    "likeness",
    "list_models",
    "load",
    "margin",
    "matches",
    "open_image",
    "open_snapshot",
    "read_items",
    "run_batch",
    "save_checkpoint",
]


# The module of each name, imported when the name is first used, so that `vitviz --help` need not import torch.
_MODULES = {
    "METHODS": "vitviz.attribution",
    "Analysis": "vitviz.analysis.analysis",
    "Answer": "vitviz.language.answers",
    "AttentionTrace": "vitviz.attention.trace",
    "BatchRequest": "vitviz.datasets.request",
    "CheckpointError": "vitviz.errors.kinds",
    "ConfigError": "vitviz.errors.kinds",
    "Cost": "vitviz.analysis.costs",
    "DataError": "vitviz.errors.kinds",
    "FailedAnalysis": "vitviz.analysis.batches",
    "Geometry": "vitviz.images.geometry",
    "Heatmap": "vitviz.visualization.heatmaps",
    "ImageError": "vitviz.errors.kinds",
    "LanguageModel": "vitviz.weights.language_model",
    "LimitError": "vitviz.errors.kinds",
    "MapRequest": "vitviz.datasets.request",
    "MethodError": "vitviz.errors.kinds",
    "Model": "vitviz.weights",
    "Prediction": "vitviz.analysis.predictions",
    "Preprocessing": "vitviz.images.preprocessing",
    "QueryError": "vitviz.errors.kinds",
    "Style": "vitviz.visualization.heatmaps",
    "Target": "vitviz.models.targets",
    "TokenLayout": "vitviz.attention.layout",
    "TokenMap": "vitviz.attention.token_map",
    "UnknownFamilyError": "vitviz.errors.kinds",
    "ViTConfig": "vitviz.models.config",
    "VisionTransformer": "vitviz.models.vit",
    "VitvizError": "vitviz.errors.kinds",
    "analyze": "vitviz.analysis.encoder",
    "analyze_batch": "vitviz.analysis.batches",
    "analyze_loader": "vitviz.datasets.loader",
    "ask": "vitviz.language.asking",
    "clusters": "vitviz.features.matching",
    "components": "vitviz.features.components",
    "contrast": "vitviz.models.targets",
    "cost": "vitviz.analysis.encoder",
    "explore": "vitviz.ui.explorer.inline",
    "figure": "vitviz.visualization.panels",
    "film": "vitviz.video.film",
    "likeness": "vitviz.analysis.likeness",
    "list_models": "vitviz.weights",
    "load": "vitviz.weights",
    "margin": "vitviz.models.targets",
    "matches": "vitviz.features.matching",
    "open_image": "vitviz.images.opening",
    "open_snapshot": "vitviz.weights",
    "read_items": "vitviz.datasets.readers",
    "run_batch": "vitviz.datasets.batch",
    "save_checkpoint": "vitviz.weights",
}


# Hidden from type checkers, to which every name would exist.
if not _typing.TYPE_CHECKING:

    def __getattr__(name: str) -> _typing.Any:
        """A public name, or a subpackage such as ``vitviz.evaluation``, imported when it is first used."""
        if name in _MODULES:
            value = getattr(_import_module(_MODULES[name]), name)
            globals()[name] = value
            return value
        if name.startswith("_") or _find_spec(f"{__name__}.{name}") is None:
            attributes = _import_module("vitviz.errors.attributes")
            raise attributes.unknown_attribute(_import_module(__name__), __name__, name)
        return _import_module(f"{__name__}.{name}")


def __dir__() -> list[str]:
    # With the packages, whether they are imported yet or not.
    return sorted({*globals(), *__all__, *(name for _, name, _ in _iter_modules(__path__))})
