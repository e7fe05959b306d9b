"""The command ``vitviz train``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from vitviz.errors.extras import optional
from vitviz.training.presets import PRESETS, TrainingConfig


def run(images: Path, output: Path, snapshots: int, terms: str, preset: str | None, **settings: Any) -> None:
    """Train a network."""
    with optional():
        from vitviz.training.loop import CHECKPOINT, train
    given = {name: value for name, value in settings.items() if value is not None}
    config = replace(PRESETS[preset] if preset is not None else TrainingConfig(), **given)
    _, accuracy = train(images, output, config, snapshots, terms)
    print(f"top-1 accuracy {accuracy.top1:.2%} of {accuracy.images:,} test images")
    print(f"written to {output / CHECKPOINT}")
