"""Checkpoints: :func:`load` opens one, :func:`save_checkpoint` writes one."""

from vitviz.weights.checkpoint import load_checkpoint, save_checkpoint
from vitviz.weights.load import BUNDLED, load, resources
from vitviz.weights.model import Model

__all__ = ["BUNDLED", "Model", "load", "load_checkpoint", "resources", "save_checkpoint"]
