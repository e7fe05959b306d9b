"""The commands of the documents run as written, on the bundled checkpoint and four photographs.

Commands that cannot run here are listed with the reason and the tests that run them otherwise.
"""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest

from docs.site.blocks import explorers
from tests.project.test_readme import DOCUMENTS, commands
from tests.support.clips import write_clip
from tests.support.example import ROOT
from vitviz.cli import main

pytestmark = pytest.mark.slow

# The beginning of a command, or an option of it, and the reason not to run it here.
NOT_RUN = {
    "app": "serves until it is ended: tests/driver.py starts it",
    "ask": "a network of yours: tests/cli/test_ask.py asks one",
    "train": "takes minutes: tests/training trains, tests/cli runs the command",
    "--checkpoint dino_vits16": "downloads: tests/weights/test_zoo.py opens it from a stand-in of the hub",
    "--checkpoint hf:": "downloads: tests/weights opens such names from a stand-in of the hub",
    "inspect m": "a file of yours: tests/cli inspects checkpoints of many kinds",
    "verify": "a folder of a package: tests/cli and tests/parity verify such folders",
    "evaluate ": "labelled pictures: tests/cli evaluates a folder",
    "evaluate-methods": "many pictures: tests/cli measures a folder",
    "evaluate-attention": "many pictures: tests/evaluation measures a folder",
    "describe-heads": "many pictures: tests/cli describes a folder",
    "--engine ray": "starts Ray: tests/datasets/test_cluster.py runs such batches",
    "--checkpoint runs/": "a run of yours: tests/cli opens runs",
}


def runs(line: list[str]) -> bool:
    text = shlex.join(line) + " "
    return not any(text.startswith(reason) or (reason.strip() in text and "--" in reason) for reason in NOT_RUN)


# Explorers run when the site is built; test_site.py checks their links.
EXPLORER_ARGUMENTS = {block.arguments for text in DOCUMENTS.values() for block in explorers(text)}
LINES = sorted(
    {
        shlex.join(line)
        for document in DOCUMENTS
        for line in commands(document, "vitviz")
        if runs(line) and tuple(line) not in EXPLORER_ARGUMENTS
    }
)


# The first of each command; a long run runs all.
FIRST = {line.partition(" ")[0]: line for line in reversed(LINES)}


def test_every_reason_is_needed() -> None:
    left_out = [shlex.join(line) + " " for document in DOCUMENTS for line in commands(document, "vitviz")]
    for reason in NOT_RUN:
        assert any(reason.strip() in text for text in left_out if not runs(shlex.split(text))), reason
    assert len(LINES) >= 18


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_clip(tmp_path_factory.mktemp("clip") / "clip.mp4", 3, sound="aac")


@pytest.mark.parametrize(
    "line", [pytest.param(line, marks=() if line in FIRST.values() else pytest.mark.long) for line in LINES]
)
def test_a_command_of_a_document_runs(line: str, clip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(ROOT / "assets" / "rocket.jpg", tmp_path / "photo.jpg")
    (tmp_path / "photos" / "more").mkdir(parents=True)
    shutil.copy(clip, tmp_path / "clip.mp4")
    for name, target in (("chelsea.jpg", "photos/1.jpg"), ("coffee.jpg", "photos/more/2.jpg")):
        shutil.copy(ROOT / "assets" / name, tmp_path / target)
    before = {path for path in tmp_path.rglob("*") if path.is_file()}
    monkeypatch.chdir(tmp_path)
    assert main(shlex.split(line)) == 0
    new_files = {path for path in tmp_path.rglob("*") if path.is_file()} - before
    # Lists of models, classes, tables of probes and JSON are only printed.
    is_printed = line.startswith(("models", "predict ")) or "--json" in line
    assert new_files or is_printed or (line.startswith("probe ") and "-o" not in line)
