"""Hosting: threads within the quota, and processes and folders at the end."""

from __future__ import annotations

import atexit
import errno
import mmap
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from tests.support.waiting import HANG_SECONDS
from vitviz.attention.memory import enough_memory
from vitviz.errors.kinds import LimitError
from vitviz.system.machine import has_room
from vitviz.ui import hosting
from vitviz.ui.hosting import limit_memory, limit_threads, processors, set_up_process
from vitviz.ui.server import visitor_files

pytestmark = pytest.mark.process


# Processors.


class Groups(NamedTuple):
    """Control groups: the process's own group, the files of groups, and how many of eight processors it may use."""

    cgroup: str | None
    files: dict[str, str]
    expected: int


GROUPS = {
    "version 2": Groups("0::/", {"cpu.max": "200000 100000"}, 2),
    "a group around it": Groups("0::/a/b", {"a/b/cpu.max": "max 100000", "a/cpu.max": "300000 100000"}, 3),
    "the narrowest of several": Groups("0::/a", {"a/cpu.max": "500000 100000", "cpu.max": "400000 100000"}, 4),
    "a path of the host": Groups("0::/docker/1f", {"cpu.max": "200000 50000"}, 4),
    "no whole number": Groups("0::/", {"cpu.max": "290000 100000"}, 2),
    "less than one": Groups("0::/", {"cpu.max": "50000 100000"}, 1),
    "more than there are": Groups("0::/", {"cpu.max": "6400000 100000"}, 8),
    "no bound": Groups("0::/", {"cpu.max": "max 100000"}, 8),
    "version 1": Groups(
        "5:memory:/\n4:cpu,cpuacct:/docker/1f",
        {
            "cpu,cpuacct/docker/1f/cpu.cfs_quota_us": "-1",
            "cpu,cpuacct/docker/1f/cpu.cfs_period_us": "100000",
            "cpu,cpuacct/cpu.cfs_quota_us": "250000",
            "cpu,cpuacct/cpu.cfs_period_us": "100000",
        },
        2,
    ),
    "version 1, another controller": Groups(
        "2:cpuset:/", {"cpuset/cpu.cfs_quota_us": "100000", "cpuset/cpu.cfs_period_us": "100000"}, 8
    ),
    "no control groups": Groups(None, {}, 8),
}


@pytest.mark.parametrize("name", GROUPS)
def test_processors_are_those_of_the_quota(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    files = {f"sys/fs/cgroup/{path}": content for path, content in GROUPS[name].files.items()}
    files |= {} if GROUPS[name].cgroup is None else {"proc/self/cgroup": GROUPS[name].cgroup or ""}
    for path, content in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(f"{content}\n")
    assert processors(tmp_path) == GROUPS[name].expected


def test_without_affinity_all_processors_are_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    for count, expected in ((5, 5), (None, 1)):
        monkeypatch.setattr(os, "cpu_count", lambda count=count: count)
        assert processors(tmp_path) == expected
    assert processors() >= 1


@pytest.fixture
def between(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The numbers of threads set between operations. Threads within operations are restored after the test."""
    counts: list[int] = []

    def set_threads(count: int) -> None:
        if counts:
            raise RuntimeError("cannot set number of interop threads")
        counts.append(count)

    monkeypatch.setattr(torch, "set_num_interop_threads", set_threads)
    before = torch.get_num_threads()
    yield counts
    torch.set_num_threads(before)


@pytest.mark.parametrize(("before", "requested", "expected"), [(4, None, 2), (1, None, 1), (1, 3, 3), (4, 2, 2)])
def test_threads_are_as_many_as_wanted_or_as_there_are_processors(
    before: int, requested: int | None, expected: int, between: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosting, "processors", lambda: 2)
    torch.set_num_threads(before)
    for _ in range(2):
        assert limit_threads(requested) == torch.get_num_threads() == expected
    assert between == [expected]


# The end of the process.

# They fork this process, as to import torch again takes seconds.
FORK = multiprocessing.get_context("fork")


def set_up(parent: Path) -> Path:
    """Set up a forked process; returns its folder of visitors' files."""
    # What the tests do at their end is not for this process to do, and a shell may have had interrupts ignored.
    atexit._clear()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ["GRADIO_TEMP_DIR"] = str(parent)
    set_up_process()
    return Path(os.environ["GRADIO_TEMP_DIR"])


def serve(parent: Path, folders: Connection) -> None:
    folder = set_up(parent)
    (folder / "some").mkdir()
    (folder / "some" / "upload.png").write_bytes(b"somebody's")
    folders.send(folder)
    with suppress(KeyboardInterrupt):
        time.sleep(HANG_SECONDS)
    atexit._run_exitfuncs()


def test_every_process_has_a_folder_of_its_own_and_empties_it(tmp_path: Path) -> None:
    receiver, folders = multiprocessing.Pipe()
    processes = [FORK.Process(target=serve, args=(tmp_path, folders)) for _ in range(2)]
    for process in processes:
        process.start()
    found = [receiver.recv() for _ in processes]
    assert len(set(found)) == 2
    assert all(each.is_relative_to(tmp_path) and (each / "some" / "upload.png").exists() for each in found)
    for process, number in zip(processes, (signal.SIGTERM, signal.SIGINT), strict=True):
        os.kill(process.pid or 0, number)
        process.join(HANG_SECONDS)
        assert process.exitcode == 0
    assert list(tmp_path.iterdir()) == []


def end_twice(parent: Path) -> None:
    lock = threading.Lock()

    def discard(folder: Path) -> None:
        with lock:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(hosting, "discard", discard)
        set_up(parent)
        os.kill(os.getpid(), signal.SIGTERM)


def test_a_second_interrupt_ends_the_process(tmp_path: Path) -> None:
    process = FORK.Process(target=end_twice, args=(tmp_path,))
    process.start()
    process.join(60)
    assert process.exitcode == 0


def hold(parent: Path, folders: Connection) -> None:
    """A process with a folder, which is killed."""
    folder = visitor_files.own_folder(parent)
    (folder / visitor_files.FILES / "some").mkdir()
    (folder / visitor_files.FILES / "some" / "upload.png").write_bytes(b"somebody's")
    folders.send(folder)
    time.sleep(HANG_SECONDS)


def test_a_start_deletes_what_the_dead_have_left_and_nothing_of_the_living(tmp_path: Path) -> None:
    receiver, folders = multiprocessing.Pipe()
    processes = [FORK.Process(target=hold, args=(tmp_path, folders)) for _ in range(2)]
    for process in processes:
        process.start()
    held = [receiver.recv() for _ in processes]
    processes[0].kill()
    processes[0].join()
    own = visitor_files.own_folder(tmp_path)
    alive = [folder for folder in held if folder.exists()]
    assert sorted(tmp_path.iterdir()) == sorted([own, *alive]) and own.stat().st_mode & 0o077 == 0
    assert [(folder / visitor_files.FILES / "some" / "upload.png").exists() for folder in alive] == [True]
    processes[1].kill()
    processes[1].join()


def test_a_file_system_without_locks_is_used_and_nothing_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", refuse)
    first, second = visitor_files.own_folder(tmp_path), visitor_files.own_folder(tmp_path)
    assert first != second and all((folder / visitor_files.FILES).is_dir() for folder in (first, second))


def test_many_files_do_not_delay_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, popen = visitor_files.own_folder(tmp_path), subprocess.Popen
    started: list[subprocess.Popen[bytes]] = []

    def start(*command: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(popen(*command, **options))
        return started[0]

    os.mkfifo(tmp_path / "go")
    # It deletes once it is let.
    monkeypatch.setattr(visitor_files, "DELETE", ("sh", "-c", f'read line < {tmp_path}/go; rm -rf -- "$@"', "sh"))
    # short: nothing has to happen meanwhile.
    monkeypatch.setattr(visitor_files, "DELETE_SECONDS", 0.01)
    monkeypatch.setattr(subprocess, "Popen", start)
    visitor_files.discard(folder)
    assert started[0].poll() is None and folder.exists()
    (tmp_path / "go").write_text("\n")
    assert started[0].wait(60) == 0 and not folder.exists()


def test_a_folder_that_is_named_has_one_for_the_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("GRADIO_TEMP_DIR", "TMPDIR"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr("signal.signal", lambda *arguments: None)
    monkeypatch.setattr("atexit.register", lambda *arguments: None)
    monkeypatch.setattr("vitviz.ui.hosting.limit_threads", lambda threads: None)
    set_up_process()
    [folder] = tmp_path.iterdir()
    assert os.environ["GRADIO_TEMP_DIR"] == str(folder / "files")
    assert tempfile.gettempdir() == os.environ["TMPDIR"] == str(folder / "temporary")


def ask_for_too_much(answers: Connection) -> None:
    limit_memory(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 + 2**30)
    for _ in range(2):
        try:
            with enough_memory("this map"):
                torch.zeros(2**33, dtype=torch.uint8)
            answers.send("computed")
        except LimitError as error:
            answers.send(str(error))
    answers.send(torch.zeros(2**26, dtype=torch.uint8).max().item())
    # A hole that is reserved leaves room; what is used does not.
    before, hole = room(), mmap.mmap(-1, 2**29, mmap.MAP_PRIVATE)
    answers.send(before - room() <= 1)
    hole[:: mmap.PAGESIZE] = bytes(2**29 // mmap.PAGESIZE)
    answers.send(before - room() >= 7)


def room() -> int:
    """How much this process may still use, in parts of 64 MiB."""
    return next(count for count in range(1000) if not has_room((count + 1) * 2**26))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux has this limit")
def test_memory_beyond_the_limit_is_refused_and_the_process_goes_on() -> None:
    receiver, answers = multiprocessing.Pipe()
    process = FORK.Process(target=ask_for_too_much, args=(answers,))
    process.start()
    words = "this map: this machine has not enough memory free; choose a smaller resolution"
    assert [receiver.recv() for _ in range(5)] == [words, words, 0, True, True]
    process.join()
