"""Facts about published checkpoints that their files do not state, looked up by shapes.

A checkpoint matches a published one only if all of these shapes agree, that of the classifier included.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from vitviz.weights.conversion.canonical import MatchedCheckpoint, PublishedCheckpoint

DATA = Path(__file__).parents[1] / "data" / "published.json"


@dataclass(frozen=True)
class Shapes:
    """A published checkpoint.

    Args:
        name: its common name.
        width: features of a token.
        depth: encoder layers.
        heads: attention heads of a layer.
        patch: side of a patch in pixels.
        grid: patches along a side of the trained grid.
        classes: numbers of classes of its published classifiers, 0 for one without.
        facts: what else its file does not state.
    """

    name: str
    width: int
    depth: int
    heads: int
    patch: int
    grid: int
    classes: Sequence[int] = (0,)
    facts: dict[str, Any] = field(default_factory=dict)

    def match(self, checkpoint: MatchedCheckpoint) -> bool:
        """Whether a checkpoint has these shapes."""
        classes, embedding = checkpoint.shape("classifier.weight")[:1], checkpoint.shape("patch.weight")
        positions = checkpoint.shape("positions")[-2:-1]
        prefix = sum(checkpoint.has(token) for token in ("cls", "distillation"))
        return (
            (width(checkpoint), checkpoint.depth) == (self.width, self.depth)
            and embedding[-1:] == (self.patch,)
            and embedding[-2:-1] == (self.patch,)
            and (classes or (0,))[0] in self.classes
            and (positions or (0,))[0] in {self.grid**2, self.grid**2 + prefix}
        )


@cache
def published_rows(group: str) -> tuple[Shapes, ...]:
    """The published checkpoints of a group of ``data/published.json``."""
    return tuple(Shapes(**row) for row in json.loads(DATA.read_text())[group])


def by_shape(group: str) -> Callable[[MatchedCheckpoint], list[PublishedCheckpoint]]:
    """A function that returns the rows of a group which match a checkpoint, as published checkpoints."""

    def published(checkpoint: MatchedCheckpoint) -> list[PublishedCheckpoint]:
        rows = [row for row in published_rows(group) if row.match(checkpoint)]
        return [PublishedCheckpoint(row.name, {"heads": row.heads, **row.facts}) for row in rows]

    return published


def width(checkpoint: MatchedCheckpoint) -> int:
    """Features of a token."""
    return checkpoint.shape("attention_norm.weight")[0] if checkpoint.has("attention_norm.weight") else 0
