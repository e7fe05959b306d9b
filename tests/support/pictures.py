"""Small pictures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image


def photo(seed: int = 0, width: int = 30, height: int = 20) -> Image.Image:
    """Noise, so that no two patches are equal."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def write_photos(folder: Path, count: int, width: int = 30, height: int = 20) -> Path:
    """A folder with ``00.png``, ``01.png`` and so on."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        photo(number, width, height).save(folder / f"{number:02d}.png")
    return folder
