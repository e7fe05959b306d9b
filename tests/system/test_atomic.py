"""A file is written whole or not at all."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("mode", [0o666, 0o600])
def test_a_file_has_its_mode_less_the_umask(tmp_path: Path, mode: int) -> None:
    before = os.umask(0o027)
    try:
        with atomic_write(tmp_path / "map.png", mode=mode):
            pass
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "map.png").stat().st_mode) == mode & ~0o027


def test_a_name_that_is_too_long_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="too long"), atomic_write(tmp_path / ("a" * 250)):
        pass
    with atomic_write(tmp_path / ("a" * 250), shared=True) as stream:
        stream.write(b"short")
