"""What several tests of data sets share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from vitviz import Model


@pytest.fixture
def model(make_model: Callable[..., Model]) -> Model:
    return make_model(register_tokens=1)


@pytest.fixture
def _short_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three segments of a clip, the last of three frames."""
    from vitviz.datasets.video import maps, render

    for module in (maps, render):
        monkeypatch.setattr(module, "SEGMENT_FRAMES", 5)


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    # Those that read no clips need not wait for PyAV.
    from tests.support.clips import write_clip
    from tests.support.videos import COUNT

    return write_clip(tmp_path / "clip.mp4", COUNT, sound="aac")
