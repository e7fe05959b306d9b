"""The configuration of small networks, and the types of the fixtures that make them and their models."""

from collections.abc import Callable
from typing import Any

from vitviz import Model, VisionTransformer

MakeModel = Callable[..., Model]
MakeNetwork = Callable[..., VisionTransformer]
SMALL: dict[str, Any] = {
    **{"image_height": 16, "image_width": 24, "patch_height": 4, "patch_width": 4, "width": 32, "depth": 3},
    **{"heads": 4, "head_width": 8, "mlp_width": 64, "classes": 5},
}
