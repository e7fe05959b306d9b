"""An interrupted run resumes as if it had not been interrupted, or from its compact state."""

from __future__ import annotations

import itertools
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import torch

from tests.support.training import SMALL, TrainedRun, curves, interrupt_step, same_weights, steps_of, write_folder
from vitviz import (
    CheckpointError,
)
from vitviz.training import loop
from vitviz.training.config import Augmentation
from vitviz.training.evaluate import Accuracy
from vitviz.training.optimise import average_into

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
        # Each epoch writes its state, then its compact state.
        if next(calls) == 5:
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
    while int(time.time()) == second:
        time.sleep(0.05)
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
    "augmentation": ({"augmentation": Augmentation(jitter=0.1, flip=False)}, "flip was True, now False"),
    "two": ({"muon_rate": 0.01, "depth": 2}, "depth was 1, now 2; muon_rate was 0.02, now 0.01"),
}


@pytest.mark.parametrize(("changes", "message"), CHANGES.values(), ids=CHANGES)
def test_resuming_with_another_configuration_is_refused_with_the_difference(
    finished: TrainedRun, folder: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    before = shutil.copy(finished.output / loop.STATE, tmp_path / loop.STATE).read_bytes()
    with pytest.raises(CheckpointError, match=rf"state\.pt: belongs to another run \({re.escape(message)}\)"):
        loop.train(folder, tmp_path, replace(SMALL, **changes))
    assert (tmp_path / loop.STATE).read_bytes() == before


def test_a_state_from_before_a_setting_existed_is_resumed_at_its_default(
    finished: TrainedRun, folder: Path, tmp_path: Path
) -> None:
    state = torch.load(finished.output / loop.STATE, weights_only=True)
    del state["config"]["seen_patches"], state["config"]["augmentation"]["solarize"]
    torch.save(state, tmp_path / loop.STATE)
    model, _ = loop.train(folder, tmp_path, SMALL)
    assert same_weights(model.network, finished.model.network)
    torch.save(state, tmp_path / loop.STATE)
    with pytest.raises(CheckpointError, match=r"\(solarize was 0\.0, now 0\.5\)"):
        loop.train(folder, tmp_path, replace(SMALL, augmentation=replace(SMALL.augmentation, solarize=0.5)))


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


# Resuming from the compact state.


def test_the_compact_state_goes_on_at_its_epoch_with_rounded_weights(
    finished: TrainedRun, folder: Path, tmp_path: Path
) -> None:
    compact = finished.output / loop.COMPACT
    state = torch.load(compact, weights_only=True)
    assert state["epoch"] == 6 and {tensor.dtype for tensor in state["averaged"].values()} == {torch.bfloat16}
    assert compact.stat().st_size < (finished.output / loop.STATE).stat().st_size / 2
    # A finished run has no epoch left, so its weights do not change.
    model, _ = loop.train(folder, tmp_path, SMALL, resume_from=compact)
    rounded = {key: value.bfloat16().float() for key, value in finished.model.network.state_dict().items()}
    assert all(torch.equal(value, rounded[key]) for key, value in model.network.state_dict().items())


def test_a_compact_state_may_go_on_longer_and_with_other_settings(
    finished: TrainedRun, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A state in the output folder takes precedence."""
    longer = replace(SMALL, epochs=9, muon_rate=0.01, seed=3)
    steps = []

    def average(averaged: torch.nn.Module, network: torch.nn.Module, step: int, decay: float) -> None:
        steps.append(step)
        if step == 22 and steps.count(step) == 1:
            raise KeyboardInterrupt
        average_into(averaged, network, step, decay)

    monkeypatch.setattr(loop, "average_into", average)
    with pytest.raises(KeyboardInterrupt):
        loop.train(folder, tmp_path, longer, resume_from=finished.output / loop.COMPACT)
    _, accuracy = loop.train(folder, tmp_path, longer, resume_from=finished.output / loop.COMPACT)
    assert steps == [18, 19, 20, 21, 22, 21, 22, 23, 24, 25, 26]
    assert accuracy.top1 >= 0.9


COMPACT_DAMAGES: dict[str, tuple[Callable[[Path], object], dict[str, Any], str]] = {
    "missing": (lambda path: path.unlink(), {}, "no such file; expected the compact.pt of a run"),
    "text": (lambda path: path.write_bytes(b"not a state"), {}, "damaged, or no compact.pt of `vitviz train`"),
    "no configuration": (
        lambda path: torch.save({"images": {}, "epoch": 1, "averaged": {}}, path),
        {},
        r"damaged, or no compact.pt of `vitviz train` \(KeyError\)",
    ),
    "other network": (lambda path: None, {"depth": 2}, "weights of another network .*'depth': 1"),
    "too long": (lambda path: None, {"epochs": 5}, "epoch 6 of a run that is to have 5"),
}


@pytest.mark.parametrize(("damage", "changes", "message"), COMPACT_DAMAGES.values(), ids=COMPACT_DAMAGES)
def test_a_compact_state_that_does_not_fit_is_refused(
    finished: TrainedRun,
    folder: Path,
    tmp_path: Path,
    damage: Callable[[Path], object],
    changes: dict[str, Any],
    message: str,
) -> None:
    compact = Path(shutil.copy(finished.output / loop.COMPACT, tmp_path))
    damage(compact)
    with pytest.raises(CheckpointError, match=message):
        loop.train(folder, tmp_path / "run", replace(SMALL, **changes), resume_from=compact)


def test_a_compact_state_of_other_classes_is_refused(finished: TrainedRun, tmp_path: Path) -> None:
    other_folder = write_folder(
        tmp_path / "images", dict.fromkeys(("blue", "green", "yellow"), (9, 9, 9)), train=12, test=1
    )
    with pytest.raises(CheckpointError, match=r"other images \(classes was \['blue', 'green', 'red'\]"):
        loop.train(other_folder, tmp_path / "run", SMALL, resume_from=finished.output / loop.COMPACT)


def test_an_epoch_may_be_a_share_of_the_images(folder: Path, tmp_path: Path) -> None:
    """An interrupted run resumes with the next images of the order."""
    config = replace(SMALL, images_per_epoch=24, class_balance=0.5)
    uninterrupted, _ = loop.train(folder, tmp_path / "uninterrupted", config)
    assert steps_of(curves(tmp_path / "uninterrupted"), "test/accuracy") == [4, 8, 12]
    with pytest.MonkeyPatch.context() as patch:
        interrupt_step(patch, epoch=2)
        with pytest.raises(KeyboardInterrupt):
            loop.train(folder, tmp_path / "resumed", config)
    resumed, _ = loop.train(folder, tmp_path / "resumed", config)
    assert same_weights(uninterrupted.network, resumed.network)
