"""The command ``vitviz train``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vitviz.cli.options import training_config
from vitviz.errors.extras import extra


def run(images: Path, output: Path, snapshots: int, terms: str, **settings: Any) -> None:
    """Train a network."""
    with extra("train"):
        from vitviz.training.loop import CHECKPOINT, train
    _, accuracy = train(images, output, training_config(**settings), snapshots, terms)
    print(f"top-1 accuracy {accuracy.top1:.2%} of {accuracy.images:,} test images")
    print(f"written to {output / CHECKPOINT}")
