"""The accuracy of each preset, and the size of its network."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib import get_data_path
from PIL import Image, ImageDraw, ImageFont

from vitviz import (
    VisionTransformer,
)
from vitviz.training import loop
from vitviz.training.config import PRESETS

pytestmark = pytest.mark.slow

# Presets.


def write_digits(root: Path, **counts: int) -> Path:
    """Grey digits of 28×28 pixels, in many typefaces, shifted and turned: ``write_digits(root, train=24, test=10)``."""
    fonts = sorted(path for path in Path(get_data_path(), "fonts", "ttf").glob("DejaVu*.ttf") if "Dis" not in path.stem)
    random = np.random.default_rng(0)
    for split, count in counts.items():
        for digit in map(str, range(10)):
            (root / split / digit).mkdir(parents=True)
            for number in range(count):
                font = ImageFont.truetype(fonts[random.integers(len(fonts))], random.integers(18, 25))
                picture = Image.new("L", (28, 28))
                ImageDraw.Draw(picture).text(14 + random.uniform(-3, 3, 2), digit, 255, font, "mm")
                picture.rotate(random.uniform(-12, 12), Image.Resampling.BILINEAR).save(
                    root / split / digit / f"{number}.png"
                )
    return root


@pytest.mark.long
def test_the_preset_for_grey_pictures_learns_digits(tmp_path: Path) -> None:
    digits = write_digits(tmp_path / "digits", train=24, test=10)
    config = replace(PRESETS["grey"], batch_size=16, epochs=8, evaluate_every=8)
    model, accuracy = loop.train(digits, tmp_path / "run", config)
    # Chance is a tenth, with a standard deviation of 0.03.
    assert accuracy.images == 100 and accuracy.top1 > 0.25
    assert model.labels == tuple("0123456789") and model.network.config.layout(28, 28).grid_width == 7


def test_the_preset_for_small_colour_pictures_is_of_several_grids() -> None:
    config = PRESETS["cifar10"]
    assert config.sides(config.epochs) == (32, 48, 64) and config.register_tokens == 4


def test_the_preset_for_photographs_fits_what_may_ship() -> None:
    config = PRESETS["photos"]
    network = VisionTransformer(config.model_config(classes=120))
    assert 2 * sum(parameter.numel() for parameter in network.parameters()) < 15e6, "bytes in bfloat16"
    assert config.sides(0) == (48,) and config.sides(config.epochs) == (48, 80, 112)
    assert network.config.layout(112, 112).grid_width == 14 and config.register_tokens == 4
