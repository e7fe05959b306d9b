"""The same shapes in vitviz, timm and transformers, with random weights, made where they run."""

from __future__ import annotations

import importlib
import importlib.util
import os
from dataclasses import replace
from typing import Any

import torch
from torch import nn

import vitviz
from benchmarks.gpu.card import quiet
from benchmarks.memory_table import config_of
from benchmarks.shapes import Shape
from vitviz import Model, Preprocessing, VisionTransformer

os.environ.setdefault("HF_HUB_OFFLINE", "1")


def has(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def import_packages() -> None:
    """Import what takes seconds, once for all parts."""
    for name in ("timm", "transformers"):
        if has(name):
            package(name)


def package(name: str) -> Any:
    """A package, imported without its warnings, beside any build of torchvision."""
    names = (*(("tests.torchvision_names",) if has("torchvision") else ()), name)
    return quiet(lambda: [importlib.import_module(each) for each in names][-1])


def sharpen(network: nn.Module, width: int) -> None:
    """Make attention about as far from even as in a trained network."""
    for name, parameter in network.named_parameters():
        if parameter.ndim == 2 and any(part in name for part in ("qkv", "query", "key")):
            nn.init.normal_(parameter, std=(2 / width) ** 0.5)


def vitviz_model(shape: Shape, device: torch.device, precision: str = "float32") -> Model:
    with device:
        torch.manual_seed(0)
        network = VisionTransformer(config_of(shape)).eval().requires_grad_(False).set_precision(precision)
        sharpen(network, shape.width)
    preprocessing = Preprocessing(shape.image, shape.image, (0.5,) * 3, (0.5,) * 3, "squash")
    return Model(shape.name, network, preprocessing, tuple(f"class {index}" for index in range(shape.classes)))


def transformers_model(shape: Shape, device: torch.device, attention: str) -> Any:
    """A ViT of transformers; ``attention`` is ``"sdpa"``, or ``"eager"`` for one that returns its weights."""
    transformers = package("transformers")
    config = transformers.ViTConfig(
        hidden_size=shape.width,
        num_hidden_layers=shape.depth,
        num_attention_heads=shape.heads,
        intermediate_size=4 * shape.width,
        image_size=shape.image,
        patch_size=shape.patch,
        num_labels=shape.classes,
        attn_implementation=attention,
    )
    with device:
        torch.manual_seed(0)
        model = quiet(lambda: transformers.ViTForImageClassification(config)).eval().requires_grad_(False)
        sharpen(model, shape.width)
    return model


def timm_model(shape: Shape, device: torch.device) -> nn.Module:
    with device:
        torch.manual_seed(0)
        model: nn.Module = package("timm").models.VisionTransformer(
            shape.image,
            shape.patch,
            num_classes=shape.classes,
            embed_dim=shape.width,
            depth=shape.depth,
            num_heads=shape.heads,
            init_values=1.0 if shape.layer_scale else None,
        )
        sharpen(model, shape.width)
    return model.eval().requires_grad_(False)


def floor_model(shape: Shape, device: torch.device) -> tuple[str, nn.Module]:
    """The fastest forward pass that people have: timm's, or that of transformers where timm is missing."""
    if has("timm"):
        return "timm", timm_model(replace(shape, layer_scale=False), device)
    return "transformers, sdpa", transformers_model(shape, device, "sdpa")


def noise_image(side: int) -> Any:
    return (torch.rand(side, side, 3, generator=torch.Generator().manual_seed(1)) * 255).byte().numpy()


def analysis_of(model: Model) -> vitviz.Analysis:
    return vitviz.analyze(noise_image(model.preprocessing.height), model)
