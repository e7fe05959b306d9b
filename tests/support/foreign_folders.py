"""Small checkpoints of families that vitviz has no network for, with random weights, as their packages write them."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

from tests.parity.random_draws import silent
from tests.reference_packages import open_clip, timm, transformers

SIDE = 32
WINDOWS = {"image_size": SIDE, "patch_size": 2, "embed_dim": 8, "depths": [2, 2], "num_heads": [2, 2], "window_size": 4}
PROCESSOR = {
    "image_processor_type": "ViTImageProcessor",
    "size": {"height": SIDE, "width": SIDE},
    "image_mean": [0.4, 0.5, 0.6],
    "image_std": [0.5] * 3,
}
TOWER = {"timm_model_name": "test_vit_relpos", "timm_pool": "avg", "timm_proj": "linear", "image_size": 160}
TEXT = {"context_length": 8, "vocab_size": 50, "width": 16, "heads": 2, "layers": 1}


def _random(module: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    for parameter in module.parameters():
        parameter.data = 0.2 * torch.randn(parameter.shape, generator=generator)
    return module.eval()


def _transformers(cls: str, config: str, **options: Any) -> Callable[[Path], nn.Module]:
    def write(folder: Path) -> nn.Module:
        model = getattr(transformers, cls)(getattr(transformers, config)(**options))
        module = _random(model)
        model.save_pretrained(folder)
        (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
        return module

    return write


def _timm(name: str, **options: Any) -> Callable[[Path], nn.Module]:
    def write(folder: Path) -> nn.Module:
        model = _random(timm.create_model(name, num_classes=3, **options))
        cfg = {name: model.pretrained_cfg[name] for name in ("input_size", "fixed_input_size")}
        cfg |= {"mean": [0.4, 0.5, 0.6], "std": [0.5] * 3}
        if "img_size" in options:
            cfg["input_size"] = [3, options["img_size"], options["img_size"]]
        config = {"architecture": name, "num_classes": 3, "model_args": options, "pretrained_cfg": cfg}
        (folder / "config.json").write_text(json.dumps(config))
        save_file(model.state_dict(), folder / "model.safetensors", {"format": "pt"})
        return model

    return write


def _open_clip(folder: Path) -> nn.Module:
    config = {"embed_dim": 16, "vision_cfg": TOWER, "text_cfg": TEXT}
    model = _random(open_clip.CustomTextCLIP(**config))
    settings = {"model_cfg": {**config, "custom_text": True}, "preprocess_cfg": {"mean": [0.5] * 3, "std": [0.5] * 3}}
    (folder / "open_clip_config.json").write_text(json.dumps(settings))
    save_file(model.state_dict(), folder / "open_clip_model.safetensors", {"format": "pt"})
    return model.visual


FOREIGN: dict[str, Callable[[Path], nn.Module]] = {
    "Swin": _transformers("SwinForImageClassification", "SwinConfig", **WINDOWS, num_labels=3),
    "timm's relative positions": _timm("test_vit_relpos"),
    "a tower of open_clip": _open_clip,
}
"""Each function writes a checkpoint folder, and returns the vision model."""


@cache
def _made(kind: str) -> tuple[dict[str, bytes], nn.Module]:
    """The files of a checkpoint of a kind, and the module with its weights; made once, as it takes a while."""
    with TemporaryDirectory() as parent, silent():
        folder = Path(parent, "small")
        folder.mkdir()
        torch.manual_seed(0)
        module = FOREIGN[kind](folder)
        return {file.name: file.read_bytes() for file in folder.iterdir()}, module


def write_foreign(kind: str, folder: Path) -> tuple[Path, nn.Module]:
    """Write a checkpoint of a kind. Returns its folder and a module with its weights."""
    folder = folder / "small"
    folder.mkdir()
    files, module = _made(kind)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder, deepcopy(module)
