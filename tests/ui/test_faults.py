"""What breaks around the app while it runs: a full disk, files that go, visitors who leave."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.full_disk import FullDisk
from tests.support.makers import MakeModel
from tests.support.visits import Visit, on_loop
from vitviz import save_checkpoint
from vitviz.errors.kinds import CheckpointError, ImageError, LimitError
from vitviz.ui.handlers import Handlers
from vitviz.ui.models import ModelChoice
from vitviz.ui.pictures import Upload
from vitviz.ui.progress_reports import ProgressReport, RunEnded
from vitviz.ui.runs import PageRuns
from vitviz.ui.service import AnalysisService

# A full disk.


def test_a_page_is_told_of_a_full_disk_and_gets_its_file_afterwards(
    make_model: MakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    visit = Visit(PageRuns(Handlers(AnalysisService(make_model()))))
    uid = on_loop(visit.handlers.start())["views"][0]["uid"]
    with monkeypatch.context() as patched:
        patched.setattr("vitviz.ui.server.visitor_files.open", FullDisk, raising=False)
        with pytest.raises(LimitError, match=r"cannot keep a file now \(No space left on device\)"):
            on_loop(visit.handlers.service.file(uid, "layer 0"))
        assert list(tmp_path.iterdir()) == []
        assert "this server cannot keep a file" in visit.run("probe", uid=uid, probe="token_norms")["failed"]
    assert on_loop(visit.handlers.service.file(uid, "layer 0")).is_file()
    assert "address" in visit.run("probe", uid=uid, probe="token_norms")


# Files that go.


def test_a_model_whose_file_is_gone_goes_on_and_is_missed_when_it_is_opened_again(
    make_model: MakeModel, picture: Upload, tmp_path: Path
) -> None:
    bench, path = AnalysisService(make_model()), tmp_path / "mine.safetensors"
    save_checkpoint(path, make_model(register_tokens=2))
    choice = ModelChoice("", (str(path),))
    model = on_loop(bench.models.open(choice))
    path.unlink()
    _, analysis = on_loop(bench.analyze(on_loop(bench.models.open(choice)), picture, "squash"))
    assert analysis.map("relevance").values.isfinite().all()
    bench.models.page_models.discard(lambda each: each is model)
    with pytest.raises(CheckpointError, match=r"mine.safetensors: no longer kept on this server; upload it again"):
        on_loop(bench.models.open(choice))
    assert model.labels == analysis.model.labels


def test_an_upload_that_is_gone_is_said_by_its_name(make_model: MakeModel, picture: Upload) -> None:
    bench = AnalysisService(make_model())
    picture.path.unlink()
    with pytest.raises(ImageError, match=r"^noise\.png: no longer kept on this server; drop the picture here again$"):
        on_loop(bench.analyze(bench.models.start, picture, "squash"))


# Visitors who leave.


def test_the_analysis_of_a_visitor_who_left_ends_and_lets_the_next_in(make_model: MakeModel, picture: Upload) -> None:
    bench, done = AnalysisService(make_model()), list[int]()

    def report(step: ProgressReport) -> None:
        if done:
            raise RunEnded
        done.append(step.done)

    with pytest.raises(RunEnded):
        on_loop(bench.analyze(bench.models.start, picture, "squash", report=report))
    assert done == [0] and len(bench.short) == len(bench.long) == 0
    assert on_loop(bench.analyze(bench.models.start, picture, "squash"))[0]
