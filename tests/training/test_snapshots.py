"""Snapshots: written by a run, opened as one model, and chosen in the app."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch

import vitviz
from tests.support.makers import MakeModel
from tests.support.reading import read_any as read
from tests.support.refusals import check_refusals
from tests.support.training import SMALL, interrupt_step, same_weights, write_folder
from tests.support.visits import on_loop
from tests.ui.test_models import apart
from vitviz import CheckpointError, ConfigError, Model, save_checkpoint
from vitviz.training import loop
from vitviz.training.loop import MAX_SNAPSHOTS, snapshot_steps
from vitviz.ui.handlers import Handlers
from vitviz.ui.models import ModelChoice, open_choice
from vitviz.ui.server.settings import ServerSettings
from vitviz.ui.service import AnalysisService
from vitviz.weights import open_snapshot
from vitviz.weights.snapshots import find_snapshots, snapshot_path

pytestmark = pytest.mark.slow

STEPS = (0, 20, 1000)


@pytest.fixture
def run(make_model: MakeModel, tmp_path: Path) -> Path:
    """A folder with three states of a network, and a file of notes."""
    folder = tmp_path / "mine" / "snapshots"
    folder.mkdir(parents=True)
    for step in STEPS:
        save_checkpoint(snapshot_path(folder, step), make_model())
    (folder / "notes.txt").write_text("it learns")
    return folder


# Written by a run.


@pytest.mark.parametrize(("total", "count"), [(6240, 12), (18, 5), (3, 12), (1, 2), (10**6, 100)])
def test_first_and_last_are_kept_and_the_first_ones_are_dense(total: int, count: int) -> None:
    steps = sorted(snapshot_steps(total, count))
    assert steps[0] == 0 and steps[-1] == total and len(steps) <= count
    gaps = [later - earlier for earlier, later in pairwise(steps)]
    assert gaps[-1] == max(gaps)
    assert snapshot_steps(total, 0) == frozenset() and snapshot_steps(total, 1) == {total}


@pytest.mark.parametrize("count", [-1, MAX_SNAPSHOTS + 1])
def test_a_number_of_snapshots_out_of_range_is_refused(count: int, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"snapshots = {count}: expected a number from 0 to 100"):
        loop.train(write_folder(tmp_path / "images"), tmp_path / "run", SMALL, snapshots=count)


def test_a_run_keeps_its_states_and_learns_the_same(tmp_path: Path) -> None:
    images = write_folder(tmp_path / "images")
    plain, _ = loop.train(images, tmp_path / "plain", SMALL)
    assert not (tmp_path / "plain" / "snapshots").exists()
    model, _ = loop.train(images, tmp_path / "kept", SMALL, snapshots=5)
    assert same_weights(model.network, plain.network)
    folder = tmp_path / "kept" / "snapshots"
    last = vitviz.load(folder)
    assert last.snapshots is not None and last.snapshots.steps == (0, 2, 8, 18) and last.name == "kept"
    # There are too few test images for calibration.
    rounded = {key: tensor.half().float() for key, tensor in model.network.state_dict().items()}
    assert all(torch.equal(tensor, rounded[key]) for key, tensor in last.network.state_dict().items())
    first = vitviz.open_snapshot(last, 0)
    assert not first.network.classifier.weight.any() and first.card["training step"] == "0 of 18"
    checkpoint = tmp_path / "kept" / loop.CHECKPOINT
    assert snapshot_path(folder, 0).stat().st_size < 0.75 * checkpoint.stat().st_size
    with pytest.MonkeyPatch.context() as patch:
        interrupt_step(patch)
        with pytest.raises(KeyboardInterrupt):
            loop.train(images, tmp_path / "resumed", SMALL, snapshots=5)
    loop.train(images, tmp_path / "resumed", SMALL, snapshots=5)
    for step in last.snapshots.steps:
        expected, resumed = (
            vitviz.load(snapshot_path(tmp_path / name / "snapshots", step)) for name in ("kept", "resumed")
        )
        assert same_weights(expected.network, resumed.network)
    # The same in the first epoch, before any complete epoch has a state.
    with pytest.MonkeyPatch.context() as patch:
        interrupt_step(patch, epoch=0)
        with pytest.raises(KeyboardInterrupt):
            loop.train(images, tmp_path / "early", SMALL, snapshots=5)
    assert snapshot_path(tmp_path / "early" / "snapshots", 0).is_file()
    early, _ = loop.train(images, tmp_path / "early", SMALL, snapshots=5)
    assert same_weights(early.network, model.network)
    (tmp_path / "kept" / loop.STATE).unlink()
    with pytest.raises(CheckpointError, match="snapshots: snapshots of another run; remove them, or choose another"):
        loop.train(images, tmp_path / "kept", SMALL, snapshots=5)


# Opened as one model.


def test_a_folder_opens_as_its_last_state_and_gives_the_others(run: Path) -> None:
    model = vitviz.load(run)
    assert model.name == "mine" and model.step == 1000
    for step in STEPS:
        state, alone = open_snapshot(model, step), vitviz.load(snapshot_path(run, step))
        assert same_weights(state.network, alone.network)
        assert (state.name, state.step, state.snapshots) == ("mine", step, model.snapshots)
        assert alone.snapshots is None and alone.name == f"step-{step:07d}"
    assert dict((check.fact, check.value) for check in read(run).checks)["training steps"] == (
        "0, 20, 1,000; this is the last"
    )
    assert vitviz.load(run.rename(run.parent / "somewhere")).name == "somewhere"


def test_a_folder_without_a_run_has_no_snapshots(run: Path, make_model: MakeModel, tmp_path: Path) -> None:
    assert find_snapshots(tmp_path / "nowhere") is None and find_snapshots(Path("x" * 5000)) is None
    assert find_snapshots(run / "notes.txt") is None
    save_checkpoint(run / "model.safetensors", make_model())
    assert find_snapshots(run) is None and vitviz.load(run).snapshots is None
    (run / "model.safetensors").unlink()
    for step in STEPS[1:]:
        snapshot_path(run, step).unlink()
    assert find_snapshots(run) is None and vitviz.load(run).name == "step-0000000"


def test_a_state_that_cannot_be_opened_is_reported(run: Path, make_model: MakeModel, bundled: Model) -> None:
    model = vitviz.load(run)
    save_checkpoint(snapshot_path(run, 20), make_model(depth=2))
    snapshot_path(run, 0).write_bytes(b"no weights")
    calls = {
        "mine: no snapshot of training step 7; expected 0, 20, 1000": lambda: open_snapshot(model, 7),
        "vitviz-photos: opened without snapshots of its training": lambda: open_snapshot(bundled, 0),
        r"step-0000020\.safetensors: of another run than the other snapshots": lambda: open_snapshot(model, 20),
        r"step-0000000\.safetensors: cannot be read, or is damaged": lambda: open_snapshot(model, 0),
    }
    check_refusals(CheckpointError, calls)


# In the app.


def test_uploaded_states_are_one_model_as_long_as_it_is_used(run: Path, tmp_path: Path) -> None:
    (run / "notes.txt").unlink()
    choice = ModelChoice("", apart(run, tmp_path / "apart"))
    model = open_choice(choice)
    assert model.name == "snapshots"
    bench = AnalysisService(model, ServerSettings(model_bytes=model.nbytes + 1))
    for step in (*STEPS[:2], *STEPS[:2]):
        # Only the newest state is in the cache, so the files are linked again.
        assert on_loop(bench.models.open(choice._replace(step=step))).step == step
    with pytest.raises(CheckpointError, match="no snapshot of training step 7"):
        on_loop(bench.models.open(choice._replace(step=7)))


def test_a_server_of_one_model_shows_its_states(run: Path) -> None:
    bench = AnalysisService(vitviz.load(run), ServerSettings(shared=True))
    assert on_loop(bench.models.open(bench.models.choice("", 20))).step == 20


@pytest.fixture
def handlers(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Handlers:
    """The handlers of an app that starts with the last state."""
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path / "files"))
    return Handlers(AnalysisService(replace(vitviz.load(run), name=str(run))))


def test_a_link_contains_the_step(handlers: Handlers) -> None:
    page_state = on_loop(handlers.open_link({"link": "?step=20"}, lambda state: None))
    assert page_state["state"]["views"][0]["step"] == page_state["views"][0]["step"] == 20 and page_state["notes"] == []
    assert page_state["models"][""]["steps"] == list(STEPS)
    uid = page_state["views"][0]["uid"]
    assert handlers.describe({"state": page_state["state"], "uids": [uid]})["link"].startswith("?step=20&method=")
    # Without a step the last state opens.
    last = on_loop(handlers.open_link({"link": f"?step={STEPS[-1]}"}, lambda state: None))
    assert last["state"]["views"][0]["step"] is None and last["notes"] == []
    other = on_loop(handlers.open_link({"link": "?step=7"}, lambda state: None))
    assert other["state"]["views"][0]["step"] == 7
    assert "no snapshot of training step 7; expected 0, 20, 1000" in other["notes"][0]
