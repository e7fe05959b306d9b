"""An interrupted run resumes as if it had not been interrupted; a damaged state is refused and never executed."""

from __future__ import annotations

import itertools
import pickle
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import torch

from tests.support.training import SMALL, TrainedRun, curves, interrupt_step, same_weights, write_folder
from tests.support.waiting import wait_until
from vitviz import CheckpointError
from vitviz.training import loop
from vitviz.training.evaluate import Accuracy

pytestmark = pytest.mark.slow

# Interrupts and resumes.


def interrupt_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupt after the second epoch, before its state is written."""

    def stop(*_: object) -> Accuracy:
        raise KeyboardInterrupt

    monkeypatch.setattr(loop, "evaluate", stop)


def interrupt_writing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupt with half of the third epoch's state on the disk."""
    save_whole, calls = torch.save, itertools.count(1)

    def save(state: dict[str, Any], stream: BinaryIO) -> None:
        save_whole(state, stream)
        if next(calls) == 3:
            stream.truncate(1000)
            raise KeyboardInterrupt

    monkeypatch.setattr(torch, "save", save)


@pytest.mark.parametrize(
    ("interrupt", "whole_epochs"),
    [
        pytest.param(interrupt_step, 4, marks=pytest.mark.long),
        pytest.param(interrupt_evaluation, 1, marks=pytest.mark.long),
        (interrupt_writing, 2),
    ],
)
def test_an_interrupted_run_resumes_as_if_it_had_not_been(
    finished: TrainedRun,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    interrupt: Callable[[pytest.MonkeyPatch], None],
    whole_epochs: int,
) -> None:
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        interrupt(patched)
        loop.train(folder, tmp_path, SMALL)
    assert torch.load(tmp_path / loop.STATE, weights_only=True)["epoch"] == whole_epochs
    assert not (tmp_path / loop.CHECKPOINT).exists()

    # TensorBoard reads files of the same second in the order of their names.
    second = int(time.time())
    wait_until(lambda: int(time.time()) != second)
    model, accuracy = loop.train(folder, tmp_path, SMALL)
    assert same_weights(model.network, finished.model.network)
    assert accuracy == finished.accuracy
    resumed, uninterrupted = curves(tmp_path), curves(finished.output)
    for tag in uninterrupted.Tags()["scalars"]:
        both = [[(event.step, event.value) for event in events.Scalars(tag)] for events in (resumed, uninterrupted)]
        assert both[0] == both[1], f"{tag} has gaps or doubles where it was resumed"


CHANGES = {
    "epochs": ({"epochs": 7}, "epochs was 6, now 7"),
    "seed": ({"seed": 1}, "seed was 0, now 1"),
    "two": ({"learning_rate": 0.01, "depth": 2}, "depth was 1, now 2; learning_rate was 0.02, now 0.01"),
}


@pytest.mark.parametrize(("changes", "message"), CHANGES.values(), ids=CHANGES)
def test_resuming_with_another_configuration_is_refused_with_the_difference(
    finished: TrainedRun, folder: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    before = shutil.copy(finished.output / loop.STATE, tmp_path / loop.STATE).read_bytes()
    with pytest.raises(CheckpointError, match=rf"state\.pt: belongs to another run \({re.escape(message)}\)"):
        loop.train(folder, tmp_path, replace(SMALL, **changes))
    assert (tmp_path / loop.STATE).read_bytes() == before


@pytest.mark.parametrize(
    ("classes", "count", "message"),
    [
        (("blue", "green", "yellow"), 12, r"classes was \['blue', 'green', 'red'\], now \['blue', 'green', 'yellow'\]"),
        (("blue", "green", "red"), 13, "training images was 36, now 39"),
    ],
    ids=["classes", "count"],
)
def test_other_images_are_not_resumed(
    finished: TrainedRun, tmp_path: Path, classes: tuple[str, ...], count: int, message: str
) -> None:
    other_folder = write_folder(tmp_path / "images", dict.fromkeys(classes, (9, 9, 9)), train=count, test=1)
    shutil.copy(finished.output / loop.STATE, tmp_path / loop.STATE)
    with pytest.raises(CheckpointError, match=message):
        loop.train(other_folder, tmp_path, SMALL)


class Payload:
    """Makes a folder when it is unpickled by a loader that executes what it reads."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return Path.mkdir, (self.path,)


DAMAGES: dict[str, Callable[[Path, dict[str, Any]], object]] = {
    "empty": lambda path, state: path.write_bytes(b""),
    "truncated": lambda path, state: path.write_bytes(path.read_bytes()[:-2000]),
    "torch pickle": lambda path, state: torch.save({"settings": Payload(path.parent / "executed")}, path),
    "list": lambda path, state: torch.save([1, 2], path),
    "no network": lambda path, state: torch.save({k: v for k, v in state.items() if k != "network"}, path),
    "no settings": lambda path, state: torch.save({**state, "settings": None}, path),
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
