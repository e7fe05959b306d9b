"""As a Hugging Face Space: the front matter, what a start needs, threads within the quota, a card that is lent."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import packages_distributions, requires, version
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.request import urlopen

import gradio as gr
import pytest
import torch
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.driver import EXAMPLE, running_app
from vitviz import Analysis, Model, VisionTransformer, analyze
from vitviz.errors.kinds import ConfigError, ImageError, LimitError, QueryError
from vitviz.progress import Progress
from vitviz.ui import build_demo, files, hosting
from vitviz.ui.hosting import Forward, forward, limit_threads, on_gpu, prepare, processors
from vitviz.ui.service import AnalysisService

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]


# The front matter of the README.


def text(value: Any) -> bool:
    return isinstance(value, str) and value == value.strip() != ""


def texts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(text, value))


def boolean(value: Any) -> bool:
    return isinstance(value, bool)


def whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def one_of(*choices: str) -> Callable[[Any], bool]:
    return lambda value: value in choices


def like(pattern: str) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and re.fullmatch(pattern, value) is not None


COLOUR = one_of("red", "yellow", "green", "blue", "indigo", "purple", "pink", "gray")
HARDWARE = one_of(
    *("cpu-basic", "cpu-upgrade", "t4-small", "t4-medium", "l4x1", "l4x4", "l40sx1", "l40sx4", "l40sx8"),
    *("a10g-small", "a10g-large", "a10g-largex2", "a10g-largex4", "a100-large", "a100x4", "a100x8"),
)
HEADERS = {"cross-origin-embedder-policy", "cross-origin-opener-policy", "cross-origin-resource-policy"}
# "Spaces Configuration Reference" in the documentation of the Hugging Face hub, huggingface.co/docs/hub, August 2026;
# `license` is in its "Licenses".
DOCUMENTED: dict[str, Callable[[Any], bool]] = {
    "title": text,
    "emoji": like(r"[\u2190-\u2bff\U0001f000-\U0001faff]\ufe0f?"),
    "colorFrom": COLOUR,
    "colorTo": COLOUR,
    "sdk": one_of("gradio", "docker", "static"),
    "python_version": like(r"3\.\d+(\.\d+)?"),
    "sdk_version": like(r"\d+\.\d+\.\d+"),
    "suggested_hardware": HARDWARE,
    "suggested_storage": one_of("small", "medium", "large"),
    "app_file": text,
    "app_build_command": text,
    "app_port": whole,
    "base_path": like("/.*"),
    "fullWidth": boolean,
    "header": one_of("mini", "default"),
    # The hub shows no more of it.
    "short_description": like(".{1,60}"),
    "models": texts,
    "datasets": texts,
    "tags": texts,
    "thumbnail": like("https://.+"),
    "pinned": boolean,
    "hf_oauth": boolean,
    "hf_oauth_scopes": texts,
    "hf_oauth_expiration_minutes": whole,
    "hf_oauth_authorized_org": lambda value: text(value) or texts(value),
    "disable_embedding": boolean,
    "startup_duration_timeout": like(r"\d+[mh]"),
    "custom_headers": lambda value: isinstance(value, dict) and value.keys() <= HEADERS,
    "preload_from_hub": texts,
    "license": like(r"[a-z0-9.-]+"),
}
# "Spaces ZeroGPU" there; the newest of torch since September 2026.
LENDING_PYTHONS = ("3.12.12", "3.10.13")
LENDING_TORCHES = ("2.8.0", "2.9.1", "2.10.0", "2.11.0", "2.12.1", "2.13.0")


@pytest.fixture(scope="module")
def front_matter() -> dict[str, Any]:
    found = re.match(r"---\n(.*?)^---\n\n# ", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    assert found is not None
    return yaml.safe_load(found[1])


def requirement(name: str) -> Requirement:
    return next(each for each in REQUIRED if each.name == name)


REQUIRED = [
    Requirement(line) for line in (ROOT / "requirements.txt").read_text().splitlines() if line and line[0] != "#"
]
PYPROJECT = (ROOT / "pyproject.toml").read_text()


def test_every_key_of_the_front_matter_is_documented_and_has_a_legal_value(front_matter: dict[str, Any]) -> None:
    assert {
        "title",
        "emoji",
        "colorFrom",
        "colorTo",
        "sdk",
        "sdk_version",
        "app_file",
        "license",
    } <= front_matter.keys()
    assert front_matter.keys() <= DOCUMENTED.keys()
    assert [key for key, value in front_matter.items() if not DOCUMENTED[key](value)] == []


@pytest.mark.parametrize(
    ("key", "value"),
    [("colorTo", "violet"), ("emoji", "eye"), ("python_version", 3.12), ("short_description", "a" * 61), ("tags", [])],
)
def test_the_test_above_can_fail(key: str, value: Any) -> None:
    assert not DOCUMENTED[key](value)


def test_the_front_matter_agrees_with_the_project(front_matter: dict[str, Any]) -> None:
    assert (ROOT / front_matter["app_file"]).is_file() and front_matter["sdk"] == "gradio"
    licence = re.search(r'^license = "(.+)"$', PYPROJECT, re.MULTILINE)
    assert licence is not None and front_matter["license"] == licence[1].lower()
    python = front_matter["python_version"]
    assert f'"Programming Language :: Python :: {".".join(python.split(".")[:2])}"' in PYPROJECT
    # Nothing is fetched, by the host neither.
    assert "preload_from_hub" not in front_matter


def test_the_versions_are_tested_ones_and_those_of_the_host_that_lends_cards(front_matter: dict[str, Any]) -> None:
    gradio, lowest = requirement("gradio"), r"gradio>=(\d+\.\d+)"
    assert front_matter["sdk_version"] in gradio.specifier
    found = re.search(lowest, (ROOT / "requirements.txt").read_text())
    assert found is not None and front_matter["sdk_version"] in (f"{found[1]}.0", version("gradio"))
    assert front_matter["python_version"] in LENDING_PYTHONS
    assert any(each in requirement("torch").specifier for each in LENDING_TORCHES)


# A start as it is on a Space: with nothing but the requirements, and no way out.

WATCHED = """
import json, os, sys, threading
from importlib.machinery import PathFinder
from pathlib import Path

HIDDEN, folder = json.loads(os.environ["HIDDEN"]), Path(os.environ["LOG"])
ASKED = {"socket.getaddrinfo": 0, "socket.gethostbyname": 0, "socket.connect": 1, "socket.sendto": 1}


class Required(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in HIDDEN else super().find_spec(name, path, target)

    @classmethod
    def find_distributions(cls, context=None):
        return [] if context is not None and context.name == "vitviz" else super().find_distributions(context)


def watch(event, arguments):
    if event not in ASKED:
        return
    asked = arguments[ASKED[event]]
    host = asked if ASKED[event] == 0 else asked[0] if isinstance(asked, tuple) else None
    if host in ("127.0.0.1", "localhost", "::1", None):
        names = sorted({name.partition(".")[0] for name in sys.modules})
        # Another thread may be here, too, and the test reads it meanwhile.
        part = folder / f"loaded {threading.get_ident()}"
        part.write_text(json.dumps(names))
        os.replace(part, folder / "loaded")
        return
    with (folder / "outside").open("a") as log:
        log.write(f"{event} {asked!r}\\n")
    raise ConnectionRefusedError(event)


sys.meta_path[:] = [Required if finder is PathFinder else finder for finder in sys.meta_path]
sys.addaudithook(watch)
"""


def installed() -> set[str]:
    """The distributions that the requirements bring, with theirs, by name."""
    found: set[tuple[str, frozenset[str]]] = set()
    waiting = list(REQUIRED)
    here = {canonicalize_name(name) for names in packages_distributions().values() for name in names}
    while waiting:
        one = waiting.pop()
        name, extras = canonicalize_name(one.name), frozenset(one.extras)
        if name not in here or (name, extras) in found:
            continue
        found.add((name, extras))
        for other in map(Requirement, requires(name) or ()):
            if other.marker is None or any(other.marker.evaluate({"extra": extra}) for extra in (*extras, "")):
                waiting.append(other)
    return {name for name, _ in found}


@dataclass(frozen=True)
class Start:
    """What `python app.py` said and did: what it loaded, where it wanted to go, and its cache afterwards."""

    config: dict[str, Any]
    health: int
    loaded: set[str]
    hidden: set[str]
    outside: str
    cached: list[Path]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Start:
    folder, cache = tmp_path_factory.mktemp("start"), tmp_path_factory.mktemp("cache")
    (folder / "sitecustomize.py").write_text(WATCHED)
    (folder / "outside").touch()
    brought = installed()
    hidden = {
        name
        for name, owners in packages_distributions().items()
        if name != "vitviz" and not brought & {canonicalize_name(owner) for owner in owners}
    }
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "GRADIO_"))}
    environment |= {"HIDDEN": json.dumps(sorted(hidden)), "LOG": str(folder), "PYTHONPATH": str(folder)}
    environment["HF_HOME"] = str(cache)
    with running_app(environment) as address:
        config = json.load(urlopen(f"{address}/config", timeout=60))
        health = status(f"{address}/health")
        # Written when the app asks itself for the first time, which on a busy machine may be later.
        last = time.monotonic() + 30
        while not (folder / "loaded").exists() and time.monotonic() < last:
            time.sleep(0.1)
    loaded = set(json.loads((folder / "loaded").read_text()))
    return Start(config, health, loaded, hidden, (folder / "outside").read_text(), list(cache.rglob("*")))


def status(address: str) -> int:
    try:
        return int(urlopen(address, timeout=60).status)
    except HTTPError as error:
        return error.code


def test_the_app_starts_with_the_requirements_and_nothing_else(start: Start) -> None:
    assert start.config["title"] == "vitviz"
    assert {"vitviz", "gradio", "torch"} <= start.loaded
    # Of what only the tests need.
    assert {"pytest", "timm", "captum"} <= start.hidden
    assert not start.loaded & start.hidden


def test_nothing_is_fetched_at_the_start_and_nobody_is_told_of_it(start: Start) -> None:
    assert start.outside == "" and [path for path in start.cached if path.is_file()] == []
    assert start.config["analytics_enabled"] is False


def test_it_is_well_without_being_installed(start: Start) -> None:
    assert start.health == 200


def test_the_entry_is_short_and_launches_only_when_it_is_run() -> None:
    source = (ROOT / "app.py").read_text()
    assert len(source.splitlines()) <= 20
    assert re.search(r"^demo = ", source, re.MULTILINE) and re.search(r"^prepare\(", source, re.MULTILINE)
    before, _, after = source.partition('if __name__ == "__main__":\n')
    assert "serve(" not in before and "serve(demo, server_settings)" in after


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


def by(run: Forward, model: Model, **said: Any) -> Analysis:
    return analyze(EXAMPLE, model, resolution=24, forward=run, **said)


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
    model, told = make_model(**changes), []
    for _ in range(2):
        expected = by(VisionTransformer.encode, model)
        found = by(forward(), model, report=told.append)
        assert_same(found, expected)
        assert (found.trace.pooled is None) == (expected.trace.pooled is None)
        assert torch.equal(found.rollout().values, expected.rollout().values)
        assert torch.equal(found.map("relevance").values, expected.map("relevance").values)
    assert told == 2 * [Progress(0, 3), Progress(3, 3)]
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
print(f"{os.getpid()} {folder}", flush=True)
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
