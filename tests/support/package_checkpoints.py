"""Small checkpoints with random weights, written by the packages themselves."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.parity.random_configurations import DRAWN
from tests.parity.random_draws import Draw, silent

# One checkpoint of every package whose numbers vitviz reproduces exactly.
EXACT = {
    "timm": Draw("vit_tiny_patch16_224", {"num_heads": 2, "depth": 2}, {"safe": True}),
    "transformers": Draw("ViTForImageClassification", {"num_labels": 3}),
    "open_clip": Draw("CLIP", {"quick_gelu": True}, {"safe": True}),
}


def write(package: str, folder: Path, draw: Draw | None = None) -> Path:
    """Write a small checkpoint with random weights into a new folder."""
    folder = folder / "small"
    folder.mkdir()
    with silent():
        torch.manual_seed(0)
        DRAWN[package].make(draw or EXACT[package], folder)
    return folder


def change(folder: Path, key: str, by: float, file: str = "model.safetensors") -> None:
    """Add a number to a tensor of a checkpoint."""
    tensors = load_file(folder / file)
    tensors[key] = tensors[key] + by
    save_file(tensors, folder / file, {"format": "pt"})


def edit(folder: Path, change: Callable[[dict[str, Any]], None], file: str = "config.json") -> None:
    values = json.loads((folder / file).read_text())
    change(values)
    (folder / file).write_text(json.dumps(values))
