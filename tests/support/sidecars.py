"""Reads preprocessing from the configuration files of several packages."""

from __future__ import annotations

from vitviz.images.preprocessing import Preprocessing
from vitviz.weights.metadata.preparation import read_preprocessing
from vitviz.weights.metadata.sidecars import Sidecars

DEFAULT = Preprocessing(8, 8, (0.1, 0.2, 0.3), (0.4, 0.5, 0.6), "native")


def source(sidecars: Sidecars, height: int = 224, width: int = 224) -> str:
    return read_preprocessing(sidecars, height, width, DEFAULT, (8, 8))[1]
