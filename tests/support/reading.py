"""Checkpoints read with what a user states, as keywords."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from vitviz import Model
from vitviz.weights.checkpoint_sources import read_source
from vitviz.weights.formats.files import open_weights
from vitviz.weights.native import read_native
from vitviz.weights.overrides import Stated
from vitviz.weights.read import Reading, read

OPTIONS = ("device", "precision", "report", "verify", "engine")


def read_checkpoint(path: str | os.PathLike[str], name: str | None = None, **stated: Any) -> Reading:
    """A file or folder."""
    return read(path, Stated.of(**stated), name)


def read_any(source: str | os.PathLike[str], **arguments: Any) -> Reading:
    """A name, hub id or path, with arguments of :func:`vitviz.load`."""
    options = {name: arguments.pop(name) for name in OPTIONS if name in arguments}
    return read_source(source, Stated.of(**arguments), **options)


def load_checkpoint(path: str | Path, name: str | None = None) -> Model:
    """A file that :func:`vitviz.save_checkpoint` wrote."""
    return read_native(open_weights(path), name)
