"""A table of timm's Vision Transformers by name, so that reading their checkpoints does not need timm."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[1] / "data" / "timm_architectures.json"
CLASSIFIERS = ("head.weight", "head.bias", "head_dist.weight", "head_dist.bias")


@dataclass(frozen=True)
class TimmArchitecture:
    """A model that timm has a name for.

    Args:
        name: timm's.
        cls: the name of its class in timm.
        arguments: of the class, as JSON.
        shapes: the :func:`digest` of its tensors.
        classes: numbers of classes of its published weights.
    """

    name: str
    cls: str
    arguments: Mapping[str, Any]
    shapes: str
    classes: tuple[int, ...]


def digest(shapes: Mapping[str, tuple[int, ...]]) -> str:
    """A digest that two state dicts of timm share if their tensors, except classifiers, have the same shapes.

    Args:
        shapes: of the tensors by key; all layers are assumed to have the same ones.
    """
    first_layer = {key: tuple(shape) for key, shape in shapes.items() if not re.match(r"blocks\.[1-9]", key)}
    depth = 1 + max((int(number) for key in shapes for number in re.findall(r"^blocks\.(\d+)\.", key)), default=-1)
    tensors = sorted((key, list(shape)) for key, shape in first_layer.items() if key not in CLASSIFIERS)
    return hashlib.sha256(json.dumps([depth, tensors]).encode()).hexdigest()[:12]


@cache
def architectures() -> Mapping[str, TimmArchitecture]:
    """The rows of the table by name."""
    rows = json.loads(DATA.read_text())
    return {
        name: TimmArchitecture(name, row["class"], row["arguments"], row["shapes"], tuple(row.get("classes", ())))
        for name, row in rows.items()
    }


def matching_architectures(shapes: Mapping[str, tuple[int, ...]]) -> list[TimmArchitecture]:
    """The architectures whose tensors, except classifiers, have these shapes."""
    shapes_digest = digest(shapes)
    return [row for row in architectures().values() if row.shapes == shapes_digest]
