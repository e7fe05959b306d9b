"""What several tests of data sets share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.datasets.batches import COUNT
from vitviz import Model


@pytest.fixture
def model(make_model: Callable[..., Model]) -> Model:
    return make_model(register_tokens=1)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Of several shapes; one is none."""
    folder, rng = tmp_path / "photos", np.random.default_rng(0)
    folder.mkdir()
    for number in range(COUNT):
        noise = rng.integers(0, 255, (20 + number % 3, 30, 3), dtype=np.uint8)
        Image.fromarray(noise).save(folder / f"{number:02d}.png")
    (folder / "04.png").write_bytes(b"no picture")
    return folder
