"""The Vision Transformer: its configuration, its layers, its forward pass and its gradients.

One network runs every family; ``weights`` converts a family's checkpoint to its parameters.
"""

from vitviz.models.config import ViTConfig
from vitviz.models.targets import Target
from vitviz.models.vit import VisionTransformer

__all__ = ["Target", "ViTConfig", "VisionTransformer"]
