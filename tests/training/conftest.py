"""Coloured squares and a complete run on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.training import SMALL, TrainedRun, write_folder
from vitviz.training import loop


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve training and four test images of each of three colours. Read only."""
    return write_folder(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="module")
def finished(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainedRun:
    """A complete run without interruption. Read only."""
    output = tmp_path_factory.mktemp("runs") / "colours"
    return TrainedRun(output, *loop.train(folder, output, SMALL))


@pytest.fixture
def state(finished: TrainedRun) -> dict[str, Any]:
    return torch.load(finished.output / loop.STATE, weights_only=True)
