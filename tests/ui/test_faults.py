"""What breaks around the app while it runs: a full disk, files that go, visitors who leave."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gradio as gr
import pytest
from vitviz.ui.photo import Upload
from vitviz.ui.picture import PictureOutput
from vitviz.ui.sight import Sight
from vitviz.ui.waiting import ANALYSIS, Waiting
from vitviz.ui.workbench import Workbench

import vitviz
import vitviz.ui.files
from tests.towers import make_transformers
from vitviz import Model, load, save_checkpoint
from vitviz.errors.kinds import CheckpointError, ImageError, LimitError
from vitviz.ui.explorer import AttentionExplorer
from vitviz.ui.files import keep
from vitviz.ui.jobs import Jobs, Stopped
from vitviz.ui.models import START, ModelChoice
from vitviz.weights.text_tower import TextPrompt

pytestmark = pytest.mark.parity

Make = Callable[..., Model]
ANNA: Any = SimpleNamespace(session_hash="anna")


# A full disk.


class FullDisk:
    """A file on it takes a few bytes, then no more."""

    def __init__(self, real: Any) -> None:
        self.real = real

    def __call__(self, **options: Any) -> Any:
        written = self.real(**options)

        def write(content: bytes) -> None:
            written.file.write(content[:10])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        written.write = write
        return written


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vitviz.ui.files, "NamedTemporaryFile", FullDisk(vitviz.ui.files.NamedTemporaryFile))


def test_nothing_is_left_of_a_file_that_a_full_disk_cut(tmp_path: Path, full_disk: None) -> None:
    with pytest.raises(LimitError, match=r"cannot keep a file of 1,000 bytes \(No space left on device\)"):
        keep(bytes(1000), "pack.safetensors", str(tmp_path))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("uploaded", [True, False])
def test_a_file_that_is_no_picture_is_not_kept_where_it_was_uploaded(
    make_model: Make, picture: Upload, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uploaded: bool
) -> None:
    timers = []
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path if uploaded else tmp_path / "elsewhere"))
    monkeypatch.setattr("threading.Timer", lambda *said: timers.append(said) or SimpleNamespace(start=lambda: None))
    bench, bad = Workbench(make_model()), Upload(tmp_path / "bad.png", "bad.png")
    bad.path.write_bytes(b"<html>")
    with pytest.raises(ImageError, match=r"^'?bad\.png'?: ") as first:
        bench.analyze(bench.start, bad, Sight("squash"))
    with pytest.raises(ImageError), bench.uploaded.opened(bad):
        pass
    # One for a file, however often it is told of.
    [(seconds, act, given)] = timers
    assert seconds == 30 and bad.path.exists()
    act(*given)
    assert bad.path.exists() is not uploaded and picture.path.exists()
    # A page that asks for it once more is told the same.
    with pytest.raises(ImageError) as again:
        bench.analyze(bench.start, bad, Sight("squash"))
    assert str(again.value) == str(first.value)
    with bench.uploaded.opened(picture) as opened:
        assert opened.size == (40, 24)


def test_a_page_is_told_of_a_full_disk_and_gets_its_file_afterwards(
    make_model: Make, picture: Upload, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    bench = Workbench(make_model())
    key, analysis = bench.analyze(bench.start, picture, Sight("squash"))
    explored = bench.explored(key, analysis, START, picture, Sight("squash"))
    with gr.Blocks():
        explorer, shown = AttentionExplorer(files=bench.file), PictureOutput(format="png")
    explorer.GRADIO_CACHE = shown.GRADIO_CACHE = str(tmp_path / "cache")
    wanted = {"uid": key, "name": "layer 0"}
    with monkeypatch.context() as patched:
        patched.setattr(vitviz.ui.files, "NamedTemporaryFile", FullDisk(vitviz.ui.files.NamedTemporaryFile))
        assert "No space left on device" in explorer.answer(wanted)["refused"]
        for show in (lambda: explorer.postprocess(explored), lambda: shown.postprocess(analysis.prepared.image)):
            with pytest.raises(gr.Error, match="this server cannot keep a file"):
                show()
    assert Path(explorer.answer(wanted)["path"]).is_file()
    assert explorer.postprocess(explored).uid == key


# Files that go.


def test_a_model_whose_file_is_gone_goes_on_and_is_missed_when_it_is_opened_again(
    make_model: Make, picture: Upload, tmp_path: Path
) -> None:
    bench, path = Workbench(make_model()), tmp_path / "mine.safetensors"
    save_checkpoint(path, make_model(register_tokens=2))
    choice = ModelChoice("", (str(path),))
    model = bench.model(choice)
    path.unlink()
    _, analysis = bench.analyze(bench.model(choice), picture, Sight("squash"))
    assert analysis.map("relevance").values.isfinite().all()
    bench.models = type(bench.models)(1, leaving=bench.cache.drop)
    with pytest.raises(CheckpointError, match=r"mine.safetensors: no longer kept on this server; upload it again"):
        bench.model(choice)
    assert model.labels == analysis.model.labels


def test_a_text_tower_whose_files_are_gone_is_an_error_in_words(picture: Upload, tmp_path: Path) -> None:
    make_transformers(tmp_path / "clip", "CLIP")
    model = load(tmp_path / "clip")
    bench = Workbench(model)
    shutil.rmtree(tmp_path / "clip")
    with pytest.raises(CheckpointError):
        bench.target(model, TextPrompt("a cat"))
    _, analysis = bench.analyze(model, picture, Sight(model.preprocessing.fit))
    assert analysis.rollout().values.sum() > 0


def test_an_upload_that_is_gone_is_said_by_its_name(make_model: Make, picture: Upload) -> None:
    bench = Workbench(make_model())
    picture.path.unlink()
    with pytest.raises(ImageError, match=r"^noise\.png: no longer kept on this server; drop the picture here again$"):
        bench.analyze(bench.start, picture, Sight("squash"))


# Visitors who leave.


def test_the_analysis_of_a_visitor_who_left_ends_and_lets_the_next_in(make_model: Make, picture: Upload) -> None:
    bench, jobs = Workbench(make_model()), Jobs()
    done = []

    def progress(state: tuple[int, int], desc: str) -> None:
        done.append(state[0])
        jobs.leave("anna")

    with pytest.raises(Stopped), Waiting(jobs).running(ANNA, ANALYSIS, progress) as report:
        bench.analyze(bench.start, picture, Sight("squash"), report)
    assert done == [0] and len(bench.small) == len(bench.large) == 0
    assert bench.analyze(bench.start, picture, Sight("squash"))[0]
