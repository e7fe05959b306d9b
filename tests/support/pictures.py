"""Small pictures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image


def photo(seed: int = 0, width: int = 30, height: int = 20) -> Image.Image:
    """Noise, so that no two patches are equal."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def write_photos(
    folder: Path, names: Iterable[str], sizes: Sequence[tuple[int, int]] = ((30, 20),), broken: Iterable[str] = ()
) -> Path:
    """A folder of pictures, whose widths and heights take turns, and of files that are none."""
    for number, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        photo(number, *sizes[number % len(sizes)]).save(folder / name)
    for name in broken:
        (folder / name).write_bytes(b"no picture")
    return folder
