"""A batch that was ended goes on: every picture once, files that are asked for later, failures that are tried again."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitviz
from tests.datasets.batches import COUNT, Ended, asked, end_after, rows
from tests.support.example import ROOT
from tests.support.waiting import wait_until
from vitviz import Model, Style
from vitviz.cli.command import main
from vitviz.datasets import NUMBERS, Item, batch, overlays, read_items, run_batch
from vitviz.datasets.output import key_digest
from vitviz.datasets.work import FILE_DIGEST_BYTES, UnprocessedPictures
from vitviz.errors.kinds import ConfigError
from vitviz.images.callable_preprocessing import CallablePreprocessing
from vitviz.progress import Progress

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("ends", [(1,), (5,), (3, 7, 11)])
def test_a_run_goes_on_where_it_was_ended(model: Model, photos: Path, tmp_path: Path, ends: tuple[int, ...]) -> None:
    request, whole = asked(model), tmp_path / "whole"
    run_batch(request, read_items(str(photos)), whole, batch_size=4)
    for count in ends:
        with pytest.raises(Ended):
            run_batch(request, read_items(str(photos)), tmp_path / "out", batch_size=4, report=end_after(count))
        assert len(rows(tmp_path / "out")) == count
    last = run_batch(request, read_items(str(photos)), tmp_path / "out", batch_size=4)
    assert (last.skipped, last.analysed + last.failed) == (ends[-1], COUNT - ends[-1])
    found, expected = rows(tmp_path / "out"), rows(whole)
    assert found.keys() == expected.keys()
    for name, row in found.items():
        assert row["sha256"] == expected[name]["sha256"] and row["error"] == expected[name]["error"]
        if row["rollout"] is not None:
            np.testing.assert_allclose(row["rollout"], expected[name]["rollout"], rtol=1e-4, atol=1e-6)
    again = run_batch(request, read_items(str(photos)), tmp_path / "out")
    assert (again.analysed, again.failed, again.skipped, again.failed_before) == (0, 0, COUNT, 1)


# It goes no further than its first part, however fast it is.
STOPPED_AFTER_A_PART = """
import time
from vitviz.cli import main
from vitviz.datasets import batch
from vitviz.system import atomic
batch.PART_ROWS = 8
replace = atomic.os.replace
def replace_and_wait(source, target):
    replace(source, target)
    if target.name == "part-000000.parquet":
        time.sleep(600)
atomic.os.replace = replace_and_wait
main({command!r})
"""


@pytest.mark.process
def test_a_run_that_is_killed_leaves_nothing_broken_and_counts_nothing_twice(
    model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    count, folder, output = 40, tmp_path / "photos", tmp_path / "out"
    folder.mkdir()
    for number in range(count):
        Image.new("RGB", (24, 16), (number, 0, 0)).save(folder / f"{number:02d}.bmp")
    vitviz.save_checkpoint(tmp_path / "small.safetensors", model)
    command = ["batch", str(folder), str(output), "--map", "rollout"]
    command += ["--checkpoint", str(tmp_path / "small.safetensors")]
    program = STOPPED_AFTER_A_PART.format(command=command)
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stderr=subprocess.DEVNULL) as first:
        wait_until(lambda: first.poll() is not None or (output / "parts" / "part-000000.parquet").exists())
        os.kill(first.pid, signal.SIGKILL)
    # What a write leaves that is cut off.
    (output / "parts" / ".part-000001.parquet.partial").write_bytes(b"half")
    there = len(rows(output))
    assert 0 < there < count
    assert main(command) == 0 and f"{there:,} there before" in capsys.readouterr().out
    found = rows(output)
    assert len(found) == count
    for name in ("00.bmp", "29.bmp", "39.bmp"):
        expected = vitviz.analyze(folder / name, model).rollout().numpy().ravel()
        np.testing.assert_allclose(found[name]["rollout"], expected, rtol=1e-4, atol=1e-6)


def test_files_that_are_asked_for_later_are_written_and_no_row_is_there_twice(
    model: Model, photos: Path, tmp_path: Path
) -> None:
    output, items = tmp_path / "out", list(read_items(str(photos)))
    run_batch(asked(model, probes=()), items, output, batch_size=4)
    before = rows(output)
    writers = (overlays(Style()), NUMBERS)

    def stop(state: Progress) -> None:
        if state.done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_batch(asked(model, probes=()), items, output, batch_size=2, writers=writers, report=stop)
    there = {file for file in output.rglob("*.npz")}
    assert 0 < len(there) < COUNT - 1
    times = {file: file.stat().st_mtime_ns for file in there}
    reports: list[Progress] = []
    ended = run_batch(asked(model, probes=()), items, output, batch_size=2, writers=writers, report=reports.append)
    assert (ended.analysed, ended.failed, ended.skipped, ended.failed_before) == (0, 0, COUNT, 1)
    assert ended.completed == COUNT - 1 - len(there) and reports[-1] == Progress(COUNT, COUNT)
    assert times == {file: file.stat().st_mtime_ns for file in there} and rows(output) == before
    assert len(list((output / "numbers").iterdir())) == COUNT - 1
    assert len(list((output / "pictures").iterdir())) == 2 * (COUNT - 1)
    # A picture that has been lost meanwhile: its row stays, and its file is missing, which is said.
    (output / "numbers" / "07.png.npz").unlink()
    (photos / "07.png").unlink()
    lost = run_batch(asked(model, probes=()), items, output, writers=writers)
    assert (lost.analysed, lost.failed, lost.skipped, lost.completed) == (0, 1, COUNT, 0)
    assert "07.png" in lost.errors and "no such file" in lost.errors["07.png"] and rows(output) == before


def test_what_failed_is_tried_again_where_that_is_asked_for(
    model: Model, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "out"
    monkeypatch.setattr(batch, "PART_ROWS", 4)
    monkeypatch.setattr(batch, "MAX_ERRORS", 2)
    for name in ("05.png", "08.png"):
        (photos / name).write_bytes(b"no picture")
    # A part in which every picture failed, and one with others.
    first = run_batch(asked(model, probes=()), [Item("04.png", photos / "04.png")], output)
    assert (first.failed, list(first.errors)) == (1, ["04.png"])
    second = run_batch(asked(model, probes=()), read_items(str(photos)), output, batch_size=2)
    assert (second.failed, second.failed_before, list(second.errors)) == (2, 1, ["04.png", "05.png"])
    before = rows(output)
    Image.new("RGB", (30, 20)).save(photos / "05.png")
    ended = run_batch(asked(model, probes=()), read_items(str(photos)), output, retry_failed=True)
    assert (ended.analysed, ended.failed, ended.skipped, ended.failed_before) == (1, 2, COUNT - 3, 0)
    assert ended.errors.keys() == {"04.png", "08.png"}
    after = rows(output)
    assert after.pop("05.png")["error"] is None and before.pop("05.png")["error"]
    assert after == before


def test_rows_of_another_preprocessing_labels_or_files_are_refused(model: Model, photos: Path, tmp_path: Path) -> None:
    output, preprocessing = tmp_path / "out", model.preprocessing
    run_batch(asked(model, probes=()), read_items(str(photos)), output)
    before = rows(output)
    others = [
        ("preprocessing", replace(model, preprocessing=replace(preprocessing, mean=(0.0,) * len(preprocessing.mean)))),
        ("labels", replace(model, labels=model.labels[::-1])),
        # Half of a surrogate pair, which JSON may hold.
        ("labels", replace(model, labels=("\ud800", *model.labels[1:]))),
    ]
    for name, other in others:
        with pytest.raises(ConfigError, match=f"the results of another request, with other '{name}'; expected"):
            run_batch(asked(other, probes=()), [], output)
    Image.new("RGB", (30, 20)).save(photos / "07.png")
    for writers in ((), (NUMBERS,)):
        with pytest.raises(ConfigError, match=r"^07\.png: its file has changed since its row was written; expected"):
            run_batch(asked(model, probes=()), read_items(str(photos)), output, writers=writers)
    assert rows(output) == before


def test_only_the_first_picture_of_a_key_is_that_of_its_row() -> None:
    content, key = b"one", key_digest("a.png")
    files = {key: hashlib.sha256(content).digest()[:FILE_DIGEST_BYTES]}
    pictures = UnprocessedPictures([Item("a.png", content), Item("a.png", b"another")], {key}, files)
    assert list(pictures) == [] and pictures.skipped == 2


def test_a_function_is_told_from_another_by_its_input(model: Model) -> None:
    side, count = model.preprocessing.height, len(model.preprocessing.mean)

    def function(image: Image.Image, resample: Image.Resampling) -> torch.Tensor:
        pixels = np.asarray(image.resize((side, side), resample), np.float32) / 255
        return torch.from_numpy(pixels).permute(2, 0, 1)[:count]

    def facts(resample: Image.Resampling) -> object:
        preprocessing = CallablePreprocessing(partial(function, resample=resample))
        return asked(replace(model, preprocessing=preprocessing)).to_json()["preprocessing"]

    box, bilinear = facts(Image.Resampling.BOX), facts(Image.Resampling.BILINEAR)
    assert box == facts(Image.Resampling.BOX) != bilinear
