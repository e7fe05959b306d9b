"""A model, and a clip with sound."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from vitviz import Model


@pytest.fixture
def model(make_model: Callable[..., Model]) -> Model:
    return make_model(register_tokens=1)


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    # Those that read no clips need not wait for PyAV.
    from tests.support.clips import write_clip
    from tests.support.videos import COUNT

    return write_clip(tmp_path / "clip.mp4", COUNT, sound="aac")
