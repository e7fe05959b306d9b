"""Checkpoints: :func:`load` opens one of any family, :func:`save_checkpoint` writes one of vitviz's own.

Only what is light is imported here; families, formats, the hub and text towers are, where they are used.
"""

from vitviz.weights.bundled import BUNDLED, resources
from vitviz.weights.catalogue import list_models
from vitviz.weights.load import load
from vitviz.weights.model import Model
from vitviz.weights.native import save_checkpoint
from vitviz.weights.snapshots import open_snapshot
from vitviz.weights.zoo import ZOO, NamedModel

__all__ = [
    "BUNDLED",
    "ZOO",
    "Model",
    "NamedModel",
    "list_models",
    "load",
    "open_snapshot",
    "resources",
    "save_checkpoint",
]
