"""Pictures a second of ``vitviz train``, beside a plain loop over the same network."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image

from benchmarks.gpu.card import Card
from benchmarks.networks import quiet
from vitviz import VisionTransformer
from vitviz.training.presets import TrainingConfig

TITLE = "Training, pictures a second"
CLASSES, EPOCHS = 4, (1, 9)
CONFIG = TrainingConfig(
    image_size=112,
    patch_size=8,
    width=384,
    depth=8,
    register_tokens=4,
    low_resolution=0.0,
    evaluate_every=100,
)
SMALL = replace(CONFIG, image_size=16, width=24, depth=1, heads=2, batch_size=8)


def measure(card: Card) -> None:
    if find_spec("tensorboard") is None:
        card.add(TITLE, "vitviz train", {"left out": "tensorboard is missing"})
        return
    from vitviz.training.loop import train

    config, count = (SMALL, 4) if card.small else (CONFIG, 1024)
    plain = plain_rate(card, config)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_pictures(folder / "train", count, config.image_size)
        write_pictures(folder / "test", 2, config.image_size)
        # Epochs alone, without what a run does once.
        runs = (partial(train, folder, folder / f"{each}", replace(config, epochs=each)) for each in EPOCHS)
        short, long = (card.seconds(partial(quiet, run)) for run in runs)
    steps = CLASSES * count // config.batch_size * (EPOCHS[1] - EPOCHS[0])
    rate = steps * config.batch_size / max(long - short, 1e-3)
    network = f"{config.image_size} pixels, width {config.width}, {config.depth} layers, batch of {config.batch_size}"
    card.add(TITLE, network, {"vitviz train": rate, "plain loop": plain, "share": rate / plain})


def plain_rate(card: Card, config: TrainingConfig) -> float:
    """AdamW on one batch that is there already, without augmentation, in mixed precision."""
    with card.device:
        network = VisionTransformer(config.model_config(CLASSES))
        pixels = torch.randn(config.batch_size, 3, config.image_size, config.image_size)
        targets = torch.randint(CLASSES, (config.batch_size,))
    optimiser = torch.optim.AdamW(network.parameters())

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        with torch.autocast(card.device.type, torch.bfloat16):
            loss = F.cross_entropy(network(pixels).float(), targets)
        loss.backward()
        optimiser.step()

    return config.batch_size / card.turns({"step": step})["step"]


def write_pictures(folder: Path, count: int, side: int) -> None:
    random = np.random.default_rng(0)
    for index in range(CLASSES):
        (folder / f"class {index}").mkdir(parents=True)
        for number in range(count):
            noise = random.integers(0, 255, (side // 4, side // 4, 3), dtype=np.uint8)
            Image.fromarray(noise).resize((side, side)).save(folder / f"class {index}" / f"{number:04d}.jpg")
