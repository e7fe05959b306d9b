"""A table of timm's Vision Transformers by name, so that reading their checkpoints does not need timm."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from vitviz.weights.metadata.normalisations import HALVES
from vitviz.weights.metadata.rules import PreprocessingRule
from vitviz.weights.metadata.stated_preprocessing import timm_rule

DATA = Path(__file__).parents[1] / "data" / "timm_architectures.json"
CLASSIFIERS = ("head.weight", "head.bias", "head_dist.weight", "head_dist.bias")

# How timm prepares pictures for a Vision Transformer, by entries of its pretrained_cfg; a row states what differs.
USUAL_CFG: Mapping[str, Any] = {
    **{"mean": HALVES[0], "std": HALVES[1], "interpolation": "bicubic", "crop_pct": 0.9, "crop_mode": "center"},
    "input_size": (3, 224, 224),
}


@dataclass(frozen=True)
class TimmArchitecture:
    """A model that timm has a name for.

    Args:
        name: timm's.
        shapes: the :func:`digest` of its tensors.
        facts: that the tensors do not tell, as those of a family; None for one that vitviz's own network is not.
        classes: numbers of classes of its published weights.
        pretrained_cfg: how timm prepares pictures for its default weights, where that differs from :data:`USUAL_CFG`.
        tags: the same for other published weights by their tag, where it differs from the default ones.
    """

    name: str
    shapes: str
    facts: Mapping[str, Any] | None = None
    classes: Sequence[int] = ()
    pretrained_cfg: Mapping[str, Any] = field(default_factory=dict)
    tags: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def transform(self, tag: str = "") -> PreprocessingRule:
        """How timm prepares pictures of three channels for this model.

        Args:
            tag: of published weights, which timm writes behind a dot; the default ones for one that prepares alike.
        """
        cfg = {**USUAL_CFG, **self.tags.get(tag, self.pretrained_cfg)}
        return timm_rule(cfg, f"timm's default for {self.name}" + f".{tag}" * (tag in self.tags), 3)


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
    return {name: TimmArchitecture(name, **row) for name, row in json.loads(DATA.read_text(encoding="utf-8")).items()}


def matching_architectures(shapes: Mapping[str, tuple[int, ...]]) -> list[TimmArchitecture]:
    """The architectures whose tensors, except classifiers, have these shapes."""
    shapes_digest = digest(shapes)
    return [row for row in architectures().values() if row.shapes == shapes_digest]
