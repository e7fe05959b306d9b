"""As a Hugging Face Space: the front matter, what a start needs, threads within the quota, a card that is lent."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import gradio as gr
import pytest
import torch

from tests.driver import EXAMPLE
from vitviz import Analysis, Model, VisionTransformer, analyze
from vitviz.errors.kinds import ConfigError, ImageError, LimitError, QueryError
from vitviz.progress import Progress
from vitviz.ui import build_demo, files, hosting
from vitviz.ui.hosting import Forward, forward, limit_threads, on_gpu, prepare, processors
from vitviz.ui.service import AnalysisService

pytestmark = pytest.mark.process
ROOT = Path(__file__).parents[2]


# Processors.


class Groups(NamedTuple):
    """Control groups: what a process is told of its own, the files, and how many of eight processors it may use."""

    own: str | None
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
    files |= {} if GROUPS[name].own is None else {"proc/self/cgroup": GROUPS[name].own or ""}
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
    """How many threads were asked for between operations; the threads within them are as before after the test."""
    asked: list[int] = []

    def once(count: int) -> None:
        if asked:
            raise RuntimeError("cannot set number of interop threads")
        asked.append(count)

    monkeypatch.setattr(torch, "set_num_interop_threads", once)
    before = torch.get_num_threads()
    yield asked
    torch.set_num_threads(before)


@pytest.mark.parametrize(("before", "wanted", "expected"), [(4, None, 2), (1, None, 1), (1, 3, 3), (4, 2, 2)])
def test_threads_are_as_many_as_wanted_or_as_there_are_processors(
    before: int, wanted: int | None, expected: int, between: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosting, "processors", lambda: 2)
    torch.set_num_threads(before)
    for _ in range(2):
        assert limit_threads(wanted) == torch.get_num_threads() == expected
    assert between == [expected]


@pytest.mark.parametrize("wanted", [0, -1])
def test_no_threads_are_refused(wanted: int, between: list[int]) -> None:
    with pytest.raises(ConfigError, match=f"threads = {wanted}: expected a whole number of at least 1"):
        limit_threads(wanted)
    assert between == []


# A card that is lent.


class Host(ModuleType):
    """The host's package: functions run in a process forked at the first call, to which everything is pickled."""

    def __init__(self) -> None:
        super().__init__("spaces")
        self.functions: list[Any] = []
        self.refusal: Exception | None = None
        self.calls: list[tuple[Any, ...]] = []
        self._workers: list[Any] = []

    def GPU(self, function: Callable[..., Any], duration: int) -> Callable[..., Any]:
        assert 0 < duration < 60
        self.functions.append(function)

        def call(*arguments: Any) -> Any:
            if self.refusal is not None:
                raise self.refusal
            if not self._workers:
                self._fork(function)
            self.calls.append(arguments)
            connection = self._workers[-1][1]
            connection.send_bytes(pickle.dumps(arguments))
            process, found = pickle.loads(connection.recv_bytes())
            assert process == self._workers[-1][0].pid != os.getpid()
            return found

        return call

    def _fork(self, function: Callable[..., Any]) -> None:
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()

        def serve() -> None:
            while content := theirs.recv_bytes():
                # In the thread that was forked, OpenMP would wait for others that were not.
                with ThreadPoolExecutor(1) as pool:
                    found = pool.submit(function, *pickle.loads(content)).result()
                theirs.send_bytes(pickle.dumps((os.getpid(), found)))

        process = context.Process(target=serve, daemon=True)
        process.start()
        self._workers.append((process, ours))

    def end(self) -> None:
        """The process with the card is over; the next call starts another."""
        for process, connection in self._workers:
            connection.send_bytes(b"")
            process.join()
        self._workers.clear()


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    """A host that lends cards, which are processors here; every forward pass is worth one."""
    found = Host()
    monkeypatch.setitem(sys.modules, "spaces", found)
    monkeypatch.setenv("SPACES_ZERO_GPU", "true")
    monkeypatch.setattr(hosting, "CARD", "cpu")
    monkeypatch.setattr(hosting, "WORTH_A_CARD", 0)
    forward.cache_clear()
    yield found
    found.end()
    forward.cache_clear()


# Of Python 3.12 and newer, about what the host does.
forking = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")


def by(run: Forward, model: Model, **options: Any) -> Analysis:
    return analyze(EXAMPLE, model, resolution=24, forward=run, **options)


def assert_same(found: Analysis, expected: Analysis) -> None:
    torch.testing.assert_close(found.logits, expected.logits)
    for name in ("queries", "keys"):
        ours, theirs = getattr(found.trace, name), getattr(expected.trace, name)
        assert torch.equal(ours, theirs) and ours.stride() == theirs.stride() and ours.dtype == theirs.dtype
    assert found.trace.known_log_sums.keys() == expected.trace.known_log_sums.keys() != set()
    for layer in range(expected.trace.layers):
        assert torch.equal(found.trace.log_sums(layer), expected.trace.log_sums(layer))
    for name in ("scale", "layout", "keep_bytes", "nbytes"):
        assert getattr(found.trace, name) == getattr(expected.trace, name)


def test_elsewhere_everything_is_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    # An import would fail.
    monkeypatch.setitem(sys.modules, "spaces", None)
    forward.cache_clear()
    for value in (None, "", "false", "0"):
        monkeypatch.delenv("SPACES_ZERO_GPU", raising=False)
        if value is not None:
            monkeypatch.setenv("SPACES_ZERO_GPU", value)
        assert on_gpu(EXAMPLE.exists) == EXAMPLE.exists
        assert forward() is VisionTransformer.encode


def test_the_host_gets_the_forward_pass_once_and_nothing_else(
    host: Host, make_model: Callable[..., Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosting, "WORTH_A_CARD", 1e9)
    model = make_model()
    build_demo(model)
    AnalysisService(model)
    assert [function.__qualname__ for function in host.functions] == ["Lent._run"]
    # Nobody waits for a card, or pays for it, where the processor is done at once.
    assert host.calls == []


@forking
@pytest.mark.parametrize("changes", [{}, {"pooling": "attention"}, {"rotary": True}])
def test_what_comes_back_is_what_the_processor_gives(
    host: Host, make_model: Callable[..., Model], changes: dict[str, Any]
) -> None:
    model, reports = make_model(**changes), []
    for _ in range(2):
        expected = by(VisionTransformer.encode, model)
        found = by(forward(), model, report=reports.append)
        assert_same(found, expected)
        assert (found.trace.pooled is None) == (expected.trace.pooled is None)
        assert torch.equal(found.rollout().values, expected.rollout().values)
        assert torch.equal(found.map("relevance").values, expected.map("relevance").values)
    assert reports == 2 * [Progress(0, 3), Progress(3, 3)]
    # The process was forked with it.
    assert [network for _, _, network in host.calls] == [None, None]


@forking
def test_a_network_that_was_opened_later_is_sent_once(host: Host, make_model: Callable[..., Model]) -> None:
    first, second = make_model(), make_model()
    by(forward(), first)
    for model in (second, second, first, second):
        assert_same(by(forward(), model), by(VisionTransformer.encode, model))
    sent = [network is not None for _, _, network in host.calls]
    # Asked in vain first; and again when another network has been on the card since.
    assert sent == [False, False, True, False, False, False, True]
    host.end()
    assert_same(by(forward(), second), by(VisionTransformer.encode, second))
    assert host.calls[-1][2] is None


@forking
def test_what_goes_wrong_there_is_told_here(host: Host, make_model: Callable[..., Model]) -> None:
    network = make_model().network
    for error, channels, storage in ((ConfigError, 3, "float3"), (ImageError, 4, None)):
        pixels = torch.zeros(1, channels, 16, 24)
        with pytest.raises(error) as expected:
            network.encode(pixels, storage)
        with pytest.raises(error, match=re.escape(str(expected.value))):
            forward()(network, pixels, storage)
    # No card is asked for what is wrong with the request itself.
    assert len(host.calls) == 1


def test_a_card_that_is_not_lent_is_told_in_the_words_of_the_host(host: Host, make_model: Callable[..., Model]) -> None:
    host.refusal = gr.Error("You have exceeded your quota. Try again in 1:00:00", title="ZeroGPU quota exceeded")
    with pytest.raises(LimitError, match=r"^ZeroGPU quota exceeded: You have exceeded your quota\. Try again in 1:00"):
        by(forward(), make_model())


def test_who_has_gone_asks_for_no_card(host: Host, make_model: Callable[..., Model]) -> None:
    def gone(state: Progress) -> None:
        raise QueryError("gone")

    with pytest.raises(QueryError, match="gone"):
        by(forward(), make_model(), report=gone)
    assert host.calls == []


# How it ends.

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
        # The pipe ends with the last of them.
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


def test_who_is_told_to_end_twice_ends(tmp_path: Path) -> None:
    environment = {**os.environ, "GRADIO_TEMP_DIR": str(tmp_path)}
    assert subprocess.run([sys.executable, "-c", TOLD_TWICE], env=environment, cwd=ROOT, timeout=300).returncode == 0


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where temporary files lie; nobody knows of any that is there."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(files, "WRITTEN", set())
    return tmp_path


def test_a_folder_that_is_held_is_no_other_process_s_until_its_holder_is_gone(temporary: Path) -> None:
    asks = multiprocessing.get_context("fork").Event()
    held, folders = multiprocessing.Pipe()

    def hold() -> None:
        folder = files.own_folder()
        (folder / "some").mkdir()
        (folder / "some" / "upload.png").write_bytes(b"somebody's")
        folders.send(folder)
        asks.wait(60)

    other = multiprocessing.get_context("fork").Process(target=hold)
    other.start()
    first, second = held.recv(), files.own_folder()
    assert first != second and first.parent == second.parent and set() == files.WRITTEN
    assert first.parent.stat().st_mode & 0o077 == 0
    other.kill()
    other.join()
    assert files.own_folder() == first
    # What one that was killed has left is known, and leaves when it is old.
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
    monkeypatch.setattr("signal.signal", lambda *said: None)
    monkeypatch.setattr("vitviz.ui.hosting.limit_threads", lambda threads: None)
    prepare()
    assert os.environ["GRADIO_TEMP_DIR"] == str(tmp_path)
