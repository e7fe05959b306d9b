"""Reads preprocessing from the configuration files of several packages."""

from __future__ import annotations

from typing import Any

from vitviz.images.preprocessing import Preprocessing
from vitviz.weights.metadata.preparation import find_rule
from vitviz.weights.metadata.settings import Settings
from vitviz.weights.metadata.sidecars import Sidecars

Values = dict[str, Any]
DEFAULT = Preprocessing(8, 8, (0.1, 0.2, 0.3), (0.4, 0.5, 0.6), "native")


def source(sidecars: Sidecars, height: int = 224, width: int = 224) -> str:
    return read_preprocessing(sidecars, height, width, DEFAULT, (8, 8))[1]


def read_preprocessing(
    sidecars: Sidecars,
    height: int,
    width: int,
    default: Preprocessing,
    patch: tuple[int, int] = (1, 1),
    any_size: bool = False,
) -> tuple[Preprocessing, str, str]:
    """The preprocessing of a network of this size, its source and what only its package states; else the default."""
    rule = find_rule(sidecars, len(default.mean))
    return (default, "", "") if rule is None else (*rule.fit_network(height, width, patch, any_size), rule.assumption)


def files_beside(
    config: Values | None = None, preprocessor: Values | None = None, open_clip: Values | None = None
) -> Sidecars:
    """The files beside a checkpoint with these entries."""
    return Sidecars(
        Settings(config or {}, "config.json"),
        Settings(preprocessor or {}, "preprocessor_config.json"),
        Settings(open_clip or {}, "open_clip_config.json"),
    )
