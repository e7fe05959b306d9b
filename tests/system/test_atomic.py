"""A file is written whole or not at all."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from threading import Thread

import pytest

from vitviz.errors.kinds import ImageError
from vitviz.system.atomic import atomic_write

each_kind = pytest.mark.parametrize("shared", [False, True])


@each_kind
def test_the_file_is_there_when_the_block_ends(tmp_path: Path, shared: bool) -> None:
    path = tmp_path / "map.png"
    path.write_bytes(b"old")
    with atomic_write(path, shared=shared) as stream:
        stream.write(b"new")
        stream.flush()
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new" and list(tmp_path.iterdir()) == [path]


def fail_writing(patch: pytest.MonkeyPatch) -> None:
    raise KeyboardInterrupt


def fail_replacing(patch: pytest.MonkeyPatch) -> None:
    def replace(*_: object) -> None:
        raise KeyboardInterrupt

    patch.setattr(os, "replace", replace)


@each_kind
@pytest.mark.parametrize("fail", [fail_writing, fail_replacing])
def test_an_exception_leaves_the_old_file_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: bool, fail: Callable[[pytest.MonkeyPatch], None]
) -> None:
    path = tmp_path / "map.png"
    path.write_bytes(b"old")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt), atomic_write(path, shared=shared) as stream:
        stream.write(b"new")
        fail(patch)
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


def test_the_next_writer_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    (tmp_path / ".state.pt.partial").write_bytes(b"half of a long file")
    with atomic_write(tmp_path / "state.pt") as stream:
        stream.write(b"whole")
    assert [path.name for path in tmp_path.iterdir()] == ["state.pt"]
    assert (tmp_path / "state.pt").read_bytes() == b"whole"


def test_two_may_write_one_shared_file_at_once(tmp_path: Path) -> None:
    path = tmp_path / "map.png"
    with atomic_write(path, shared=True) as one, atomic_write(path, shared=True) as other:
        other.write(b"other")
        one.write(b"one")
    assert path.read_bytes() == b"one" and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(("before", "expected"), [(None, 0o640), (0o600, 0o600), (0o666, 0o666)])
def test_a_new_file_obeys_the_umask_and_a_replaced_one_hands_on_its_mode(
    tmp_path: Path, before: int | None, expected: int
) -> None:
    path = tmp_path / "map.png"
    if before is not None:
        path.touch()
        path.chmod(before)
    umask = os.umask(0o027)
    try:
        with atomic_write(path) as stream:
            stream.write(b"new")
    finally:
        os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == expected and path.read_bytes() == b"new"


@pytest.mark.parametrize("target", ["disk/map.png", "other.png"])
@pytest.mark.parametrize("is_there", [True, False])
def test_the_file_behind_links_is_written_and_they_stay(tmp_path: Path, target: str, is_there: bool) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "one").symlink_to(target)
    (tmp_path / "two").symlink_to(tmp_path / "one")
    if is_there:
        (tmp_path / target).touch()
    with atomic_write(tmp_path / "two") as stream:
        stream.write(b"new")
    assert (tmp_path / "two").is_symlink() and (tmp_path / "one").is_symlink()
    assert (tmp_path / target).read_bytes() == b"new" and not (tmp_path / target).is_symlink()
    assert not list(tmp_path.rglob(".*"))


def test_a_pipe_is_written_into(tmp_path: Path) -> None:
    path, received = tmp_path / "pipe.png", list[bytes]()
    os.mkfifo(path)
    thread = Thread(target=lambda: received.append(path.read_bytes()))
    thread.start()
    with atomic_write(path) as stream:
        # The central directory of a ZIP file needs to know where it is.
        stream.write(b"old")
        stream.seek(0)
        stream.write(b"new")
    thread.join()
    assert received == [b"new"] and path.is_fifo() and list(tmp_path.iterdir()) == [path]


def test_a_device_is_written_into(tmp_path: Path) -> None:
    path = tmp_path / "null.png"
    path.symlink_to(os.devnull)
    with atomic_write(path) as stream:
        stream.write(b"new")
    assert path.is_char_device() and list(tmp_path.iterdir()) == [path]


def test_a_descriptor_of_a_deleted_file_is_written_into(tmp_path: Path) -> None:
    with (tmp_path / "gone").open("w+b") as file:
        (tmp_path / "gone").unlink()
        with atomic_write(Path(f"/dev/fd/{file.fileno()}")) as stream:
            stream.write(b"new")
        assert file.read() == b"new" and list(tmp_path.iterdir()) == []


def make_folder(path: Path) -> Path:
    path.mkdir()
    return path


def make_loop(path: Path) -> Path:
    path.symlink_to(path)
    return path


REFUSED: dict[str, Callable[[Path], Path]] = {
    "Is a directory": make_folder,
    "Too many levels": make_loop,
    "No space left": lambda _: Path("/dev/full"),
    "No such file": lambda path: path / "map.png",
    "too long": lambda path: path.with_name("a" * 250),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_cannot_be_written_is_one_sentence_that_names_it(tmp_path: Path, reason: str) -> None:
    path = REFUSED[reason](tmp_path / "a")
    before = list(tmp_path.iterdir())
    with pytest.raises(ImageError) as raised, atomic_write(path, error=ImageError) as stream:
        stream.write(b"new")
    assert re.fullmatch(rf"{path}: cannot be written \(.*{reason}.*\)", str(raised.value))
    assert list(tmp_path.iterdir()) == before


def test_a_shared_file_has_a_short_partial_name(tmp_path: Path) -> None:
    with atomic_write(tmp_path / ("a" * 250), shared=True) as stream:
        stream.write(b"short")
