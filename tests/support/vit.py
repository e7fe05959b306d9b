"""Pixels for small networks."""

from __future__ import annotations

import torch

from vitviz import VisionTransformer


def pixels_for(network: VisionTransformer, images: int = 2) -> torch.Tensor:
    config = network.config
    return torch.randn(images, config.channels, config.image_height, config.image_width)
