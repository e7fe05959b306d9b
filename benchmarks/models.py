"""Models of the same shape in every package; timm's and vitviz's have the same random weights."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch

import vitviz
from benchmarks.gpu.networks import timm_model, transformers_model
from benchmarks.shapes import Shape


class Models:
    """Models that are created on first use, so that a process holds only those that it measures.

    Args:
        shape: of all models.
    """

    def __init__(self, shape: Shape) -> None:
        self.shape = shape

    @cached_property
    def pixels(self) -> torch.Tensor:
        """One image, ``"1 channel height width"``."""
        generator = torch.Generator().manual_seed(1)
        return torch.randn(1, 3, self.shape.image, self.shape.image, generator=generator)

    @cached_property
    def timm(self) -> Any:
        """A model with random weights, whose attention is about as peaked as in a trained model."""
        return timm_model(self.shape, torch.device("cpu"))

    @cached_property
    def transformers(self) -> Any:
        """A model with its own random weights."""
        return transformers_model(self.shape, torch.device("cpu"), "eager")

    @cached_property
    def vitviz(self) -> vitviz.Model:
        return self.open("own")

    def open(self, engine: str, precision: str = "float32") -> vitviz.Model:
        """A new model of vitviz, with timm's weights or as timm's module itself."""
        labels = tuple(map(str, range(self.shape.classes)))
        options: dict[str, Any] = {"engine": engine, "normalisation": "imagenet", "labels": labels}
        model = vitviz.load(self.timm, **options)
        if precision != "float32":
            model.network.set_precision(precision)
        return model
