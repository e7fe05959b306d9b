"""A good checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.makers import MakeModel
from vitviz import save_checkpoint


@pytest.fixture
def good(make_model: MakeModel, tmp_path: Path) -> Path:
    """A small checkpoint that loads."""
    path = tmp_path / "small.safetensors"
    save_checkpoint(path, make_model())
    return path
