"""A missing file is named with its folder, and with the nearest name that is there; ``~`` is the home folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from vitviz.system.paths import missing, user_path


def test_what_is_missing_is_named_with_its_folder_and_the_nearest_name(tmp_path: Path) -> None:
    folder = tmp_path / "pictures"
    folder.mkdir()
    (folder / "Cat.JPG").touch()
    assert missing(folder / "cat.jpg") == f"no such file in {folder}; did you mean 'Cat.JPG'?"
    assert missing(folder / "house.png", "; expected a picture") == f"no such file in {folder}; expected a picture"
    wrong = tmp_path / "pictrues" / "deep" / "cat.jpg"
    assert missing(wrong) == f"no folder 'pictrues' in {tmp_path}; did you mean 'pictures'?"
    (folder / "gone").symlink_to("nowhere")
    assert missing(folder / "gone", kind="folder") == f"no such folder in {folder}"
    assert missing(folder / "Cat.JPG", kind="folder") == f"a file, no such folder in {folder}"


def test_home_and_the_working_folder_are_spelled_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert user_path("~/a.png") == tmp_path / "a.png" and user_path(Path("~/a.png")) == tmp_path / "a.png"
    assert missing("~/a.png") == missing("a.png") == f"no such file in {tmp_path}"


def test_a_folder_that_may_not_be_entered_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert missing(tmp_path / "a.png") == f"'a.png' cannot be reached in {tmp_path}"
