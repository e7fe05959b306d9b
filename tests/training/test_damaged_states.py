"""A damaged state is refused and never executed."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.training import SMALL, TrainedRun
from vitviz import (
    CheckpointError,
)
from vitviz.training import loop

pytestmark = pytest.mark.slow


class Payload:
    """Makes a folder when it is unpickled by a loader that executes what it reads."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return Path.mkdir, (self.path,)


DAMAGES: dict[str, Callable[[Path, dict[str, Any]], object]] = {
    "empty": lambda path, state: path.write_bytes(b""),
    "text": lambda path, state: path.write_bytes(b"not a state"),
    "truncated": lambda path, state: path.write_bytes(path.read_bytes()[:-2000]),
    "pickle": lambda path, state: path.write_bytes(pickle.dumps(Payload(path.parent / "executed"))),
    "torch pickle": lambda path, state: torch.save({"config": Payload(path.parent / "executed")}, path),
    "list": lambda path, state: torch.save([1, 2], path),
    "no optimisers": lambda path, state: torch.save({**state, "optimisers": []}, path),
    "no network": lambda path, state: torch.save({k: v for k, v in state.items() if k != "network"}, path),
    "no config": lambda path, state: torch.save({**state, "config": None}, path),
    "other tensors": lambda path, state: torch.save({**state, "network": {"norm.weight": torch.ones(3)}}, path),
    "no epoch": lambda path, state: torch.save({**state, "epoch": "six"}, path),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_state_is_refused_and_never_executed(
    finished: TrainedRun,
    folder: Path,
    tmp_path: Path,
    state: dict[str, Any],
    damage: Callable[[Path, dict[str, Any]], object],
) -> None:
    path = shutil.copy(finished.output / loop.STATE, tmp_path / loop.STATE)
    damage(path, state)
    with pytest.raises(CheckpointError, match=r"state\.pt: damaged, or not written by .* remove it") as caught:
        loop.train(folder, tmp_path, SMALL)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "executed").exists()


def test_the_payload_is_one_that_a_careless_loader_executes(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Payload(tmp_path / "executed")))
    assert (tmp_path / "executed").is_dir()
