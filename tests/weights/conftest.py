"""A good checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from vitviz import Model, save_checkpoint

MakeModel = Callable[..., Model]


@pytest.fixture
def good(make_model: MakeModel, tmp_path: Path) -> Path:
    """A small checkpoint that loads."""
    path = tmp_path / "small.safetensors"
    save_checkpoint(path, make_model())
    return path
