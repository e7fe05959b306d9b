"""Checkpoints and modules: :func:`load` opens them, :func:`save_checkpoint` writes a file of vitviz's own.

Only what is light is imported here; layouts, formats, packages and the hub are, where they are used.
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
