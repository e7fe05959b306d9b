"""A picture, checkpoints and images to call the command with, and a folder to call it in."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.support.commands import THREADS, write_images
from tests.support.makers import MakeModel
from vitviz import Model, save_checkpoint


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    pixels = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    path = tmp_path / "my photo.png"
    Image.fromarray(pixels).save(path)
    return path


@pytest.fixture
def checkpoint(make_model: MakeModel, tmp_path: Path) -> Path:
    path = tmp_path / "small.safetensors"
    save_checkpoint(path, make_model(register_tokens=1))
    return path


@pytest.fixture(autouse=True)
def working_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the command runs: an empty folder that is not that of the picture."""
    folder = tmp_path_factory.mktemp("working")
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def colours(tmp_path: Path) -> Path:
    return write_images(tmp_path / "images", {"red": (220, 40, 30), "blue": (30, 40, 220)}, train=12, test=4)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Model, dict[str, object]]]:
    """The app as it was started: with which model, and where."""
    pytest.importorskip("gradio")
    started = []

    class Demo:
        def __init__(self, model: Model, server_settings: object, others: Sequence[str]) -> None:
            self.model, self.server_settings, self.others = model, server_settings, others

    def serve(demo: Demo, **options: object) -> None:
        started.append((demo.model, {**options, "others": demo.others} if demo.others else options))

    monkeypatch.setattr("vitviz.ui.build_demo", Demo)
    monkeypatch.setattr("vitviz.ui.serve", serve)
    monkeypatch.setattr("vitviz.ui.hosting.set_up_process", lambda threads, memory_bytes: THREADS.append(threads))
    THREADS.clear()
    return started
