"""The files of visitors: who loses which when there is no room, what is old, and what deletes it."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.visits import by_visitor
from vitviz.errors.kinds import LimitError
from vitviz.system.strangers import FILE_BYTES
from vitviz.ui.server import visitor_files
from vitviz.ui.server.visitor_files import Folder


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    """Room for four small files."""
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    return Folder(4 * FILE_BYTES + 100, 60)


def test_who_fills_the_disk_loses_their_own_files(folder: Folder) -> None:
    with by_visitor("10.0.0.1"):
        mine = folder.keep(b"mine", "cat.png")
    with by_visitor("10.0.0.2"):
        flood = [folder.keep(b"1", "a.png") for _ in range(20)]
    assert mine.is_file() and [path.is_file() for path in flood] == [False] * 17 + [True] * 3
    assert not flood[0].parent.exists()


@pytest.mark.parametrize("name", ["漢" * 85 + ".png", "é" * 255, "😀" * 255 + ".jpg", "ſ" * 300])
def test_a_long_name_of_any_letters_is_kept(folder: Folder, name: str) -> None:
    path = folder.keep(b"1", name)
    assert path.read_bytes() == b"1" and path.suffix == Path(name).suffix


def test_what_is_being_written_counts_and_ends_when_there_is_no_room(folder: Folder) -> None:
    with (
        by_visitor("10.0.0.2"),
        pytest.raises(LimitError, match="no room for more files of yours"),
        folder.new("large.bin") as file,
    ):
        file.write(bytes(3 * FILE_BYTES))
        with by_visitor("10.0.0.1"):
            mine = folder.keep(bytes(100), "cat.png")
        file.write(b"1")
    assert mine.is_file() and list(folder.path.iterdir()) == [mine.parent]
    with by_visitor("10.0.0.2"), pytest.raises(LimitError), folder.borrow() as grow:
        grow(4 * FILE_BYTES)
    with by_visitor("10.0.0.2"), folder.borrow() as grow:
        grow(FILE_BYTES)
    assert folder.sizes.bound.held.total() == FILE_BYTES + 100


def test_a_file_in_use_is_not_old(folder: Folder, clock: list[float]) -> None:
    used, unused = (folder.keep(b"1", name) for name in ("a.png", "b.png"))
    clock[0] += 50
    assert folder.find(used) == used.resolve()
    clock[0] += 50
    folder.sizes.drop_unused(folder.keep_seconds)
    assert used.is_file() and not unused.parent.exists()


def test_only_files_of_the_folder_are_found(folder: Folder, tmp_path: Path) -> None:
    path, other = folder.keep(b"1", "a.png"), tmp_path.with_name("other.png")
    other.write_bytes(b"1")
    link, above = path.parent / "link.png", path.parent / ".." / ".." / "other.png"
    link.symlink_to(other)
    for wrong in (other, link, above, path.parent, path.parent / ("a" * 5000)):
        assert folder.find(wrong) is None
    assert folder.find(path) == path


def test_a_path_of_many_folders_asks_the_disk_nothing(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """By looking at each, it held everybody up for a second."""
    asked, path = list[str](), Path("/a" * 30_000)
    with monkeypatch.context() as patch:
        for name in ("lstat", "stat"):
            patch.setattr(os, name, lambda path, **_: asked.append(path))
        assert folder.find(path) is None
    assert not asked


def test_the_deletion_of_old_files_begins_again_after_a_failure(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Ended(BaseException):
        """Ends the endless loop."""

    outcomes: list[BaseException] = [KeyError("/tmp/cat.png"), OSError("full"), Ended()]
    monkeypatch.setattr(visitor_files, "time", SimpleNamespace(sleep=lambda seconds: None))
    monkeypatch.setattr(folder.sizes, "drop_unused", lambda _: (_ for _ in ()).throw(outcomes.pop(0)))
    with pytest.raises(Ended):
        folder._watch()
    assert caplog.text.count("the deletion of unused files, which begins again") == 2 and "cat.png" not in caplog.text
