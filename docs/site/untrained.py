"""Writes a network of the bundled one's shape with random weights: ``python -m docs.site.untrained FILE``."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import torch

import vitviz
from vitviz import VisionTransformer

SEED, SCALE = 0, 0.1


def write(path: Path) -> None:
    """Every parameter is drawn from a normal distribution: weights as a network starts with are too even to see."""
    bundled = vitviz.load()
    generator = torch.Generator().manual_seed(SEED)
    network = VisionTransformer(bundled.network.config).eval().requires_grad_(False)
    for parameter in network.parameters():
        parameter.normal_(0, SCALE, generator=generator)
    path.parent.mkdir(parents=True, exist_ok=True)
    vitviz.save_checkpoint(path, replace(bundled, name=path.stem, network=network))


if __name__ == "__main__":
    write(Path(sys.argv[1]))
