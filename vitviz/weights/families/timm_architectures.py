"""What timm's names of Vision Transformers mean, as a table: timm itself is not needed to read its checkpoints."""

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
class Architecture:
    """A model that timm has a name for.

    Args:
        name: timm's.
        cls: the class that timm makes.
        arguments: with which it does, as JSON.
        shapes: the :func:`digest` of its tensors.
        classes: numbers of classes of its published weights.
    """

    name: str
    cls: str
    arguments: Mapping[str, Any]
    shapes: str
    classes: tuple[int, ...]


def digest(shapes: Mapping[str, tuple[int, ...]]) -> str:
    """A short text that two state dicts of timm share where their tensors, classifiers aside, are alike.

    Args:
        shapes: of the tensors by key; layers are taken to be alike.
    """
    first = {key: tuple(shape) for key, shape in shapes.items() if not re.match(r"blocks\.[1-9]", key)}
    depth = 1 + max((int(number) for key in shapes for number in re.findall(r"^blocks\.(\d+)\.", key)), default=-1)
    tensors = sorted((key, list(shape)) for key, shape in first.items() if key not in CLASSIFIERS)
    return hashlib.sha256(json.dumps([depth, tensors]).encode()).hexdigest()[:12]


@cache
def architectures() -> Mapping[str, Architecture]:
    """The table, by name."""
    rows = json.loads(DATA.read_text())
    return {
        name: Architecture(name, row["class"], row["arguments"], row["shapes"], tuple(row.get("classes", ())))
        for name, row in rows.items()
    }


def alike(shapes: Mapping[str, tuple[int, ...]]) -> list[Architecture]:
    """The architectures whose tensors, classifiers aside, are these."""
    key = digest(shapes)
    return [row for row in architectures().values() if row.shapes == key]
