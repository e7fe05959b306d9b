"""The Vision Transformer: its configuration, its layers, its forward pass and its gradients.

One network runs every layout of vitviz's own; ``watched`` runs the modules of other packages.
"""

from vitviz.models.config import ViTConfig
from vitviz.models.targets import Target
from vitviz.models.vit import VisionTransformer

__all__ = ["Target", "ViTConfig", "VisionTransformer"]
