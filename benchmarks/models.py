"""Models of the same shape in every package; timm's and vitviz's have the same random weights."""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

import vitviz
from benchmarks.gpu.networks import transformers_model
from benchmarks.shapes import Shape


class Models:
    """Models that are created on first use, so that a process holds only those that it measures.

    Args:
        shape: of all models.
        folder: for vitviz's checkpoint, which the first process that needs it writes.
    """

    def __init__(self, shape: Shape, folder: Path) -> None:
        self.shape, self.folder = shape, folder

    @cached_property
    def pixels(self) -> torch.Tensor:
        """One image, ``"1 channel height width"``."""
        generator = torch.Generator().manual_seed(1)
        return torch.randn(1, 3, self.shape.image, self.shape.image, generator=generator)

    @cached_property
    def timm(self) -> Any:
        from tests.reference_packages import timm

        shape = self.shape
        torch.manual_seed(0)
        model = timm.models.VisionTransformer(
            shape.image,
            shape.patch,
            num_classes=shape.classes,
            embed_dim=shape.width,
            depth=shape.depth,
            num_heads=shape.heads,
            init_values=1.0 if shape.layer_scale else None,
        )
        for block in model.blocks:
            # This makes attention about as peaked as in a trained model; timm's initial weights make it almost uniform.
            nn.init.normal_(block.attn.qkv.weight, std=(2 / shape.width) ** 0.5)
        return model.eval().requires_grad_(False)

    @cached_property
    def transformers(self) -> Any:
        """A model with its own random weights."""
        return transformers_model(self.shape, torch.device("cpu"), "eager")

    @cached_property
    def checkpoint(self) -> Path:
        """timm's weights in a file."""
        path = self.folder / f"{self.shape.title.replace('/', '_')}.pth"
        if not path.exists():
            partial = path.with_suffix(f".{os.getpid()}.partial")
            torch.save(self.timm.state_dict(), partial)
            partial.rename(path)
        return path

    def open(self, precision: str = "float32") -> vitviz.Model:
        """A new model of vitviz in this precision."""
        model = vitviz.load(
            self.checkpoint, heads=self.shape.heads, activation="gelu", norm_epsilon=1e-6, pooling="cls"
        )
        model.network.set_precision(precision)
        return model

    @cached_property
    def vitviz(self) -> vitviz.Model:
        return self.open()
