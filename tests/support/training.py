"""A tiny folder of coloured squares, a configuration that learns it, and interruptions of its training."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from einops import repeat
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from vitviz import Model, Preprocessing, VisionTransformer
from vitviz.training import loop
from vitviz.training.data import LabelledImages
from vitviz.training.evaluate import Accuracy
from vitviz.training.presets import TrainingConfig

COLOURS = {"blue": (30, 40, 220), "green": (40, 200, 50), "red": (220, 40, 30)}
PLAIN = Preprocessing(8, 8, (0.0,) * 3, (1.0,) * 3, "squash")
SMALL = TrainingConfig(
    image_size=8,
    patch_size=2,
    width=16,
    depth=1,
    heads=2,
    mlp_ratio=2,
    epochs=6,
    batch_size=12,
    learning_rate=0.02,
    jitter=0.1,
)
STEPS_PER_EPOCH = 3


def write_folder(root: Path, classes: dict[str, tuple[int, int, int]] = COLOURS, **counts: int) -> Path:
    """Noisy squares of one colour a class: ``write_folder(root, train=12, test=4)``."""
    random = np.random.default_rng(0)
    for split, count in (counts or {"train": 12, "test": 4}).items():
        for label, colour in classes.items():
            (root / split / label).mkdir(parents=True)
            for number in range(count):
                pixels = np.array(colour) + random.normal(0, 25, (8, 8, 3))
                Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(root / split / label / f"{number}.png")
    return root


def same_weights(first: VisionTransformer, second: VisionTransformer) -> bool:
    """Whether two networks agree in every bit."""
    state, expected = first.state_dict(), second.state_dict()
    return state.keys() == expected.keys() and all(torch.equal(state[key], expected[key]) for key in state)


def curves(output: Path) -> EventAccumulator:
    return EventAccumulator(str(output / loop.LOGS)).Reload()


def steps_of(events: EventAccumulator, tag: str) -> list[int]:
    return [event.step for event in events.Scalars(tag)]


@dataclass(frozen=True)
class TrainedRun:
    output: Path
    model: Model
    accuracy: Accuracy


def interrupt_step(monkeypatch: pytest.MonkeyPatch, epoch: int = 4) -> None:
    """Interrupt training in the middle of an epoch, by default the fifth."""

    average_into = loop.average_into

    def average(averaged: torch.nn.Module, network: torch.nn.Module, step: int, decay: float) -> None:
        if step == epoch * STEPS_PER_EPOCH + 1:
            raise KeyboardInterrupt
        average_into(averaged, network, step, decay)

    monkeypatch.setattr(loop, "average_into", average)


def grey_images(count: int) -> LabelledImages:
    """Images of three classes; the first is grey of level 10, the second of level 20, and so on."""
    greys = torch.arange(10, 10 * count + 10, 10, dtype=torch.uint8)
    return LabelledImages(
        repeat(greys, "image -> image 3 8 8").clone(), torch.arange(count) % 3, ("blue", "green", "red")
    )
