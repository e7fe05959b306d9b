"""Hosting: threads within the quota, and processes and folders at the end."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from vitviz.errors.kinds import ConfigError
from vitviz.ui import files, hosting
from vitviz.ui.hosting import limit_threads, prepare, processors

pytestmark = pytest.mark.process
ROOT = Path(__file__).parents[2]


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


@pytest.mark.parametrize("requested", [0, -1])
def test_no_threads_are_refused(requested: int, between: list[int]) -> None:
    with pytest.raises(ConfigError, match=f"threads = {requested}: expected a whole number of at least 1"):
        limit_threads(requested)
    assert between == []


# The end of the process.

ENDING = """
import os, pathlib, signal, sys, time
from vitviz.ui.hosting import prepare

# Both processes share one import.
child = os.fork()
# Tests that run in the background of a shell inherit that it is ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
prepare()
folder = pathlib.Path(os.environ["GRADIO_TEMP_DIR"])
(folder / "some").mkdir()
(folder / "some" / "upload.png").write_bytes(b"somebody's")
# At once: with PYTHONUNBUFFERED, print writes a line and its end apart, and the other's line comes between.
os.write(1, f"{os.getpid()} {folder}\\n".encode())
if child:
    os.waitpid(child, 0)
time.sleep(60)
"""


def test_every_process_has_a_folder_of_its_own_and_empties_it(tmp_path: Path) -> None:
    environment = {**os.environ, "GRADIO_TEMP_DIR": "", "TMPDIR": str(tmp_path)}
    options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True, "cwd": ROOT}
    with subprocess.Popen([sys.executable, "-c", ENDING], env=environment, **options) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline().split(maxsplit=1) for _ in range(2)]
        found = {int(number): Path(folder.strip()) for number, folder in lines}
        assert len(set(found.values())) == 2
        assert all(each.is_relative_to(tmp_path) and (each / "some" / "upload.png").exists() for each in found.values())
        [child] = found.keys() - {process.pid}
        os.kill(child, signal.SIGTERM)
        process.send_signal(signal.SIGINT)
        # The pipe closes when the last process ends.
        assert process.stdout.read() == ""
        process.wait(30)
    assert [list(each.iterdir()) for each in found.values()] == [[], []]


TOLD_TWICE = """
import atexit, os, signal, threading
from vitviz.ui.hosting import prepare

prepare()
lock = threading.Lock()


def close():
    with lock:
        os.kill(os.getpid(), signal.SIGTERM)


atexit.register(close)
os.kill(os.getpid(), signal.SIGTERM)
"""


@pytest.mark.long
def test_a_second_interrupt_ends_the_process(tmp_path: Path) -> None:
    environment = {**os.environ, "GRADIO_TEMP_DIR": str(tmp_path)}
    assert subprocess.run([sys.executable, "-c", TOLD_TWICE], env=environment, cwd=ROOT, timeout=300).returncode == 0


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty folder for temporary files, with no folder registered."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(files, "WRITTEN", set())
    return tmp_path


def test_a_locked_folder_is_free_once_its_process_has_ended(temporary: Path) -> None:
    asks = multiprocessing.get_context("fork").Event()
    receiver, folders = multiprocessing.Pipe()

    def hold() -> None:
        folder = files.own_folder()
        (folder / "some").mkdir()
        (folder / "some" / "upload.png").write_bytes(b"somebody's")
        folders.send(folder)
        asks.wait(60)

    process = multiprocessing.get_context("fork").Process(target=hold)
    process.start()
    first, second = receiver.recv(), files.own_folder()
    assert first != second and first.parent == second.parent and set() == files.WRITTEN
    assert first.parent.stat().st_mode & 0o077 == 0
    process.kill()
    process.join()
    assert files.own_folder() == first
    # The folder of a killed process is recognised, and deleted when it is old.
    assert {str(first / "some" / "upload.png")} == files.WRITTEN


def test_a_folder_that_others_may_write_to_is_left_alone(temporary: Path) -> None:
    user = temporary / f"vitviz-{os.getuid()}"
    user.mkdir()
    user.chmod(0o777)
    folder = files.own_folder()
    assert folder.parent == temporary and folder.stat().st_mode & 0o077 == 0
    assert list(user.iterdir()) == []


def test_a_folder_that_is_named_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    monkeypatch.setattr("signal.signal", lambda *arguments: None)
    monkeypatch.setattr("vitviz.ui.hosting.limit_threads", lambda threads: None)
    prepare()
    assert os.environ["GRADIO_TEMP_DIR"] == str(tmp_path)
