"""What several tests of data sets share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.datasets.batches import COUNT
from tests.support.pictures import write_photos
from vitviz import Model


@pytest.fixture
def model(make_model: Callable[..., Model]) -> Model:
    return make_model(register_tokens=1)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Of several shapes; one is none."""
    names = [f"{number:02d}.png" for number in range(COUNT)]
    return write_photos(tmp_path / "photos", names, [(30, 20), (30, 21), (30, 22)], ["04.png"])
