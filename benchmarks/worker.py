"""What it costs to open a picture in a process of its own: ``python -m benchmarks.worker``.

A picture of 12 megapixels is decoded and brought to a model's input, in this process and in one of its own, by turns.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np
import torch
from PIL import Image

import vitviz
from vitviz.images.isolated_pictures import open_picture
from vitviz.images.preprocessing import PreparedImage
from vitviz.worker import Worker

SIZE = (4000, 3000)
CANVAS_SIDE = 900
MAX_RATIO = 1.3


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; returns 1 if the ratio is above :data:`MAX_RATIO`."""
    parser = argparse.ArgumentParser("python -m benchmarks.worker", description=__doc__)
    parser.add_argument("--repeats", type=int, default=15, help="default: %(default)s")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    model = vitviz.load()
    config, preprocessing = model.network.config, model.preprocessing
    worker = Worker()
    with TemporaryDirectory() as folder:
        path = Path(folder) / "photo.jpg"
        _photo().save(path, quality=90)

        def prepare_here() -> PreparedImage:
            image = vitviz.open_image(path)
            return preprocessing.prepare(image, config.patch_height, config.patch_width).resized(CANVAS_SIDE)

        def prepare_isolated() -> PreparedImage:
            with open_picture(worker, path, path.name) as picture:
                return picture.model_input(preprocessing, config.patch_height, config.patch_width, None, CANVAS_SIDE)

        assert torch.equal(prepare_here().pixels, prepare_isolated().pixels)
        pairs = [(_seconds(prepare_here), _seconds(prepare_isolated)) for _ in range(options.repeats)]
    worker.close()
    ratio = median(isolated / here for here, isolated in pairs)
    here_ms, apart_ms = (1000 * median(each) for each in zip(*pairs, strict=True))
    print(f"{SIZE[0]}×{SIZE[1]} pixels: {here_ms:.0f} ms here, {apart_ms:.0f} ms apart, median of ratios {ratio:.2f}")
    return int(ratio > MAX_RATIO)


def _photo() -> Image.Image:
    """Noise at several scales, about as smooth as a photograph."""
    generator = np.random.default_rng(0)
    levels = np.zeros((SIZE[1], SIZE[0], 3))
    for step in (400, 100, 25, 5):
        coarse = generator.integers(0, 64, (SIZE[1] // step, SIZE[0] // step, 3), dtype=np.uint8)
        levels += np.asarray(Image.fromarray(coarse).resize(SIZE, Image.Resampling.BICUBIC))
    return Image.fromarray(levels.clip(0, 255).astype(np.uint8))


def _seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


if __name__ == "__main__":
    raise SystemExit(main())
