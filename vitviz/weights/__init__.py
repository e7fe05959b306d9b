"""Checkpoints: :func:`load` opens one of any family, :func:`save_checkpoint` writes one of vitviz's own."""

from vitviz.weights.families import FAMILIES
from vitviz.weights.hub.download import DownloadProgress
from vitviz.weights.hub.names import is_cached
from vitviz.weights.load import BUNDLED, fetch, load, read, resources
from vitviz.weights.model import Model
from vitviz.weights.native import load_checkpoint, save_checkpoint
from vitviz.weights.overrides import OVERRIDES, parse_overrides
from vitviz.weights.read import Reading, describe, read_checkpoint
from vitviz.weights.snapshots import find_snapshots, open_snapshot, snapshot_of
from vitviz.weights.text_tower import open_text_tower
from vitviz.weights.zoo import ZOO, NamedModel

__all__ = [
    "BUNDLED",
    "FAMILIES",
    "OVERRIDES",
    "ZOO",
    "DownloadProgress",
    "Model",
    "NamedModel",
    "Reading",
    "describe",
    "fetch",
    "find_snapshots",
    "is_cached",
    "load",
    "load_checkpoint",
    "open_snapshot",
    "open_text_tower",
    "parse_overrides",
    "read",
    "read_checkpoint",
    "resources",
    "save_checkpoint",
    "snapshot_of",
]
