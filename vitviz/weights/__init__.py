"""Checkpoints: :func:`load` opens one of any family, :func:`save_checkpoint` writes one of vitviz's own."""

from vitviz.weights.checkpoint import load_checkpoint, save_checkpoint
from vitviz.weights.facts import FACTS, parse_facts
from vitviz.weights.families import FAMILIES
from vitviz.weights.hub import Progress, is_cached
from vitviz.weights.load import BUNDLED, fetch, load, read, resources
from vitviz.weights.model import Model
from vitviz.weights.read import Reading, describe, read_checkpoint
from vitviz.weights.snapshots import find_snapshots, open_step, step_of
from vitviz.weights.zoo import ZOO, NamedModel

__all__ = [
    "BUNDLED",
    "FACTS",
    "FAMILIES",
    "ZOO",
    "Model",
    "NamedModel",
    "Progress",
    "Reading",
    "describe",
    "fetch",
    "find_snapshots",
    "is_cached",
    "load",
    "load_checkpoint",
    "open_step",
    "parse_facts",
    "read",
    "read_checkpoint",
    "resources",
    "save_checkpoint",
    "step_of",
]
