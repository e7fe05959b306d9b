"""Helpers for tests of the command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from tests.support.checkpoints import timm_state
from vitviz.training.evaluate import Accuracy

Capture = pytest.CaptureFixture[str]
# The numbers of threads with which the app's process was started.
THREADS: list[int | None] = []


def same_pixels(path: Path, expected: Image.Image) -> bool:
    with Image.open(path) as image:
        return image.format == "PNG" and image.mode == expected.mode and image.tobytes() == expected.tobytes()


def command_of(method: str) -> str:
    return method.replace("_", "-")


TIMM = {"heads": 4, "activation": "gelu", "norm_epsilon": 1e-6, "pooling": "cls"}
DINO = {"heads": 3}


def as_options(overrides: dict[str, Any]) -> list[str]:
    """Overrides as options of the command."""
    return [word for name, value in overrides.items() for word in (f"--{name.replace('_', '-')}", str(value))]


def write_timm(folder: Path, positions: int = 17) -> Path:
    """A checkpoint in timm's layout with random weights: 48 features an input for 2 classes, patches of 8."""
    path = folder / "timm.safetensors"
    save_file(timm_state(classes=2, width=48, positions=positions), path)
    return path


def write_dino(folder: Path) -> Path:
    """A checkpoint in DINO's own layout, as wide as its smallest."""
    path = folder / "dino.pth"
    teacher = {f"backbone.{key}": tensor for key, tensor in timm_state(classes=None).items()}
    torch.save({"teacher": teacher, "epoch": 3}, path)
    return path


def summary(accuracy: Accuracy) -> str:
    """The last line of an evaluation."""
    low, high = accuracy.interval()
    top5 = f"top-5 {accuracy.top5:.2%}, " if len(accuracy.counts) > 5 else ""
    return (
        f"top-1 accuracy {accuracy.top1:.2%} ({low:.1%} to {high:.1%}) of {accuracy.images} images, {top5}"
        f"cross-entropy {accuracy.loss:.3f}, expected calibration error {accuracy.calibration_error:.1%}"
    )


def write_images(root: Path, classes: dict[str, tuple[int, int, int]], **counts: int) -> Path:
    random = np.random.default_rng(0)
    for split, count in counts.items():
        for label, colour in classes.items():
            (root / split / label).mkdir(parents=True)
            for number in range(count):
                pixels = np.array(colour) + random.normal(0, 20, (8, 8, 3))
                Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(root / split / label / f"{number}.png")
    return root
