"""Helpers for tests of the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn

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


def write_timm(folder: Path, size: tuple[int, int] = (32, 32)) -> Path:
    """A checkpoint in timm's layout with random weights: 16 features an input for 2 classes, patches of 8."""
    path = folder / "timm.safetensors"
    save_file(timm_state(size), path)
    return path


def timm_state(size: tuple[int, int] = (32, 32), width: int = 48) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    modules: dict[str, nn.Module] = {
        "patch_embed.proj": nn.Conv2d(3, width, 8),
        "norm": nn.LayerNorm(width),
        "head": nn.Linear(width, 2),
    }
    for layer in range(2):
        widths = {"attn.qkv": (width, 3 * width), "attn.proj": (width, width)}
        widths |= {"mlp.fc1": (width, 96), "mlp.fc2": (96, width)}
        modules |= {f"blocks.{layer}.{name}": nn.Linear(*sizes) for name, sizes in widths.items()}
        modules |= {f"blocks.{layer}.norm{number}": nn.LayerNorm(width) for number in (1, 2)}
    state = {f"{name}.{key}": tensor for name, module in modules.items() for key, tensor in module.state_dict().items()}
    patches = (size[0] // 8) * (size[1] // 8)
    state |= {"cls_token": torch.randn(1, 1, width), "pos_embed": torch.randn(1, patches + 1, width)}
    return {name: tensor + torch.randn_like(tensor) * 0.2 for name, tensor in state.items()}


def write_dino(folder: Path) -> Path:
    """A checkpoint in DINO's own layout, as wide as its smallest."""
    state = {key: tensor for key, tensor in timm_state(width=192).items() if not key.startswith("head.")}
    path = folder / "dino.pth"
    torch.save({"teacher": {f"backbone.{key}": tensor for key, tensor in state.items()}, "epoch": 3}, path)
    return path


def write_transformers(folder: Path) -> Path:
    """A folder with a ViT in the layout of transformers and its configuration."""
    state = timm_state()
    names = {
        "blocks.": "vit.encoder.layer.",
        "norm1": "layernorm_before",
        "norm2": "layernorm_after",
        "attn.proj": "attention.output.dense",
        "mlp.fc1": "intermediate.dense",
        "mlp.fc2": "output.dense",
        "head.": "classifier.",
        "cls_token": "vit.embeddings.cls_token",
        "pos_embed": "vit.embeddings.position_embeddings",
        "patch_embed.proj": "vit.embeddings.patch_embeddings.projection",
    }
    renamed = {}
    for key, tensor in state.items():
        for old, new in names.items():
            key = key.replace(old, new)
        if "attn.qkv" in key:
            for name, third in zip(("query", "key", "value"), tensor.chunk(3), strict=True):
                renamed[key.replace("attn.qkv", f"attention.attention.{name}")] = third.clone()
        else:
            renamed[key.replace("norm.", "vit.layernorm.") if key.startswith("norm.") else key] = tensor
    config = {"model_type": "vit", "hidden_size": 48, "num_attention_heads": 4, "num_hidden_layers": 2}
    config |= {"intermediate_size": 96, "image_size": 32, "patch_size": 8, "id2label": {"0": "blue", "1": "red"}}
    target = folder / "vit-folder"
    target.mkdir()
    save_file(renamed, target / "model.safetensors")
    (target / "config.json").write_text(json.dumps(config))
    return target


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
