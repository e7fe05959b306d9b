"""DINO and DINOv2 in their own layouts, against numbers that their own code gave.

Their code is no package, so ``tests/data/meta.npz`` holds its answers (``tests/data/README.md`` says how they were
made) to weights and pixels that NumPy's frozen generator makes here again.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.parity.case import Case, Reference, Size
from tests.parity.package_answers import Answer

DATA = Path(__file__).parents[1] / "data" / "meta.npz"
SIZES: tuple[Size, ...] = ((32, 32), (48, 48), (24, 40))


def random_state(shapes: dict[str, list[int]]) -> dict[str, torch.Tensor]:
    """The weights to which the stored answers belong."""
    random = np.random.RandomState(0)
    state = {}
    for name in sorted(shapes):
        norm = "norm" in name and name.endswith("weight")
        values = random.standard_normal(shapes[name]) * (0.2 if norm else 0.15) + norm
        state[name] = torch.from_numpy(values.astype(np.float32))
    return state


def random_pixels(size: Size) -> torch.Tensor:
    values = np.random.RandomState(1).standard_normal((2, 3, *size))
    return torch.from_numpy(values.astype(np.float32))


def stored(model: str) -> dict[str, Any]:
    """Shapes of the weights, and the answers by size."""
    with np.load(DATA) as data:
        found = {name.removeprefix(f"{model}/"): data[name] for name in data.files if name.startswith(f"{model}/")}
    return {**found, "shapes": json.loads(str(found["shapes"]))}


def make(folder: Path, model: str, wrap: str = "", prefix: str = "", beside: dict[str, Any] | None = None) -> Reference:
    data = stored(model)
    state = random_state(data["shapes"])
    state = {prefix + name: tensor for name, tensor in state.items()} | (beside or {})
    torch.save({wrap: state, "epoch": 99} if wrap else state, folder / "model.pth")

    def answer(pixels: torch.Tensor) -> Answer:
        size = "×".join(map(str, pixels.shape[-2:]))
        pixels.copy_(random_pixels(pixels.shape[-2:]))
        return Answer(*(torch.from_numpy(data[f"{size}/{part}"]) for part in ("output", "attention")))

    return Reference(folder / "model.pth", answer)


HEAD = {"head.mlp.0.weight": torch.ones(3, 3), "head.last_layer.weight_g": torch.ones(3, 1)}
HEADS = {"heads": 4}
OPEN = {**HEADS, "activation": "gelu", "norm_epsilon": 1e-6, "pooling": "cls", "position_rule": "bicubic offset"}
CASES = (
    Case("DINO, its own layout", "backbone", "dino", partial(make, model="dino"), SIZES, OPEN),
    Case(
        "DINO, its own layout",
        "the teacher of a training run",
        "dino",
        partial(
            make,
            model="dino",
            wrap="teacher",
            prefix="module.backbone.",
            beside={f"module.{name}": tensor for name, tensor in HEAD.items()},
        ),
        SIZES,
        HEADS,
    ),
    Case("DINOv2, its own layout", "LayerScale", "dinov2", partial(make, model="dinov2"), SIZES, HEADS),
    Case("DINOv2, its own layout", "registers", "dinov2", partial(make, model="dinov2_registers"), SIZES, HEADS),
    Case("DINOv2, its own layout", "SwiGLU of the giant", "dinov2", partial(make, model="dinov2_swiglu"), SIZES, HEADS),
    Case(
        "DINOv2, its own layout", "linear classifier", "dinov2", partial(make, model="dinov2_classifier"), SIZES, HEADS
    ),
)
