"""Small maps on pictures."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from PIL import Image

from tests.support.pictures import photo
from vitviz import Geometry, Heatmap, Preprocessing, TokenMap


def token_map(values: Any, dtype: torch.dtype = torch.float32, signed: bool = False) -> TokenMap:
    return TokenMap(torch.as_tensor(values, dtype=dtype), {}, "weight", "a map", signed=signed)


def noise(width: int, height: int) -> Image.Image:
    return photo(0, width, height)


def prepare(size: tuple[int, int], fit: str, crop_fraction: float = 1.0) -> tuple[Image.Image, Geometry, int, int]:
    """An image, its geometry for a model with patches of 4 pixels, and the height and width of that model's grid."""
    image = noise(*size)
    preprocessing = Preprocessing(24, 32, (0.5,) * 3, (0.5,) * 3, fit, crop_fraction)
    geometry = preprocessing.prepare(image, 4, 4).geometry
    return image, geometry, geometry.input_height // 4, geometry.input_width // 4


def heatmap_over(values: Any, image: Image.Image, **options: Any) -> Heatmap:
    """A map over the whole image."""
    box = (0.0, 0.0, float(image.width), float(image.height))
    return Heatmap(token_map(values, **options), image, Geometry(image.width, image.height, box, 8, 8))


def array(image: Image.Image) -> np.ndarray:
    return np.asarray(image).astype(int)
