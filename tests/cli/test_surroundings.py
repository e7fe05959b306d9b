"""The command where people run it: pipes that close, terminals of every encoding, systems without forks."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.example import EXAMPLE, ROOT
from vitviz.cli.command import main
from vitviz.cli.output import print_in_any_encoding
from vitviz.cli.pictures import find_picture


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["cat.jpg"], {"cat.rollout.png"}),
        (["cat.JPG", "other.png"], {"cat.rollout.png", "other.rollout.png"}),
        (["same.jpg", "same.png"], {"same.jpg.rollout.png", "same.png.rollout.png"}),
        (["same.jpg", "same.PNG"], {"same.jpg.rollout.png", "same.PNG.rollout.png"}),
        (["scan.001", "scan.002"], {"scan.001.rollout.png", "scan.002.rollout.png"}),
        (["photo", "photo.v2"], {"photo.rollout.png", "photo.v2.rollout.png"}),
        ([".hidden"], {".hidden.rollout.png"}),
    ],
)
def test_results_of_different_pictures_differ_in_name(names: list[str], expected: set[str], tmp_path: Path) -> None:
    for name in names:
        (tmp_path / name).touch()
    # One at a time, as in a loop of the shell.
    pictures = [find_picture(str(tmp_path / name)) for name in names]
    assert {str(picture.result(None, ".rollout.png")) for picture in pictures} == expected


def test_a_terminal_that_lacks_a_sign_gets_ascii(monkeypatch: pytest.MonkeyPatch) -> None:
    content = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(content, encoding="ascii"))
    print_in_any_encoding()
    print("8 layers × 6 heads … 猫", flush=True)
    assert content.getvalue().decode("ascii").split("\n")[0] == "8 layers x 6 heads ... ?"


def test_a_reader_that_has_enough_is_no_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        assert main(["models"]) == 141
        print("more", file=pipe)
    assert capsys.readouterr().err == ""


WITHOUT_FORKS = """
import os, sys
sys.modules.update(dict.fromkeys(("fcntl", "resource")))
for name in ("fork", "forkpty", "getuid", "sysconf"):
    delattr(os, name)
from vitviz.cli.command import main
image, folder = sys.argv[1:]
print([main(command) for command in (["rollout", image], ["batch", folder, "out", "--map", "rollout"], ["app"])])
"""


@pytest.mark.process
@pytest.mark.slow
def test_without_forks_the_command_works_and_the_app_says_why_not(tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "cat.jpg").write_bytes(EXAMPLE.read_bytes())
    command = [sys.executable, "-c", WITHOUT_FORKS, str(EXAMPLE), str(tmp_path / "pictures")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1] == "[0, 0, 2]", done.stderr
    assert "vitviz: this system cannot fork: the app, and what opens files of others, run on Linux" in done.stderr
    assert "Traceback" not in done.stderr
