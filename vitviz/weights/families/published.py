"""Facts about published checkpoints that their files do not state, looked up by shapes.

A checkpoint matches a published one only if all of these shapes agree, that of the classifier included.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from vitviz.weights.conversion.canonical import MatchedCheckpoint, Published

DATA = Path(__file__).parents[1] / "data" / "published.json"


@cache
def published_rows() -> Mapping[str, list[dict[str, Any]]]:
    """The published checkpoints by group; ``data/README.md`` says what a row states."""
    return json.loads(DATA.read_text(encoding="utf-8"))


def by_shape(group: str, checkpoint: MatchedCheckpoint) -> Published:
    """The published checkpoints of a group that have the shapes of a checkpoint, with their facts."""
    rows = [row for row in published_rows()[group] if _matches(row, checkpoint)]
    return {row["name"]: {"heads": row["heads"], **row.get("facts", {})} for row in rows}


def _matches(row: Mapping[str, Any], checkpoint: MatchedCheckpoint) -> bool:
    """Whether a checkpoint has the shapes of a published one."""
    classes, patch = checkpoint.shape("classifier.weight")[:1], checkpoint.shape("patch_embedding.weight")[-2:]
    positions = checkpoint.shape("positions")[-2:-1]
    prefix = sum(checkpoint.has(f"prefix_tokens.{token}") for token in ("cls", "distillation"))
    return (
        (width(checkpoint), checkpoint.depth, *patch) == (row["width"], row["depth"], row["patch"], row["patch"])
        and (classes or (0,))[0] in row.get("classes", [0])
        and (positions or (0,))[0] in {row["grid"] ** 2, row["grid"] ** 2 + prefix}
    )


def width(checkpoint: MatchedCheckpoint) -> int:
    """Features of a token; 0 without a layer."""
    return (checkpoint.shape("layers.*.attention_norm.weight") or (0,))[0]
