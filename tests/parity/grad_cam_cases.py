"""Small models of timm whose Grad-CAM by the package ``grad-cam`` is stored, with weights of NumPy's frozen generator.

The package itself is not among what the tests need: it imports OpenCV, which needs libraries of a desktop.
"""

from __future__ import annotations

import numpy as np
import torch

from tests.reference_packages import timm

VARIANTS: dict[str, dict[str, object]] = {"cls": {}, "registers": {"reg_tokens": 4}, "mean": {"global_pool": "avg"}}
CLASSES = 7
LAYERS = 3


def make_model(variant: str) -> torch.nn.Module:
    """A model of an image of 32×48 pixels, in evaluation mode."""
    model = timm.models.vision_transformer.VisionTransformer(
        img_size=(32, 48),
        patch_size=8,
        embed_dim=32,
        depth=LAYERS,
        num_heads=4,
        num_classes=CLASSES,
        **VARIANTS[variant],
    )
    random = np.random.RandomState(0)
    with torch.no_grad():
        for _, parameter in sorted(model.named_parameters()):
            mean, spread = (1.0, 0.2) if parameter.ndim == 1 else (0.0, 0.3)
            parameter.copy_(torch.from_numpy(random.normal(mean, spread, tuple(parameter.shape))))
    return model.eval()


def make_pixels() -> torch.Tensor:
    return torch.from_numpy(np.random.RandomState(1).standard_normal((1, 3, 32, 48))).float()
