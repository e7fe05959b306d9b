"""Files of strangers are opened in a child, with the library's numbers, or the child is ended within its limits."""

from __future__ import annotations

import json
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitviz
from tests.support.colour_profiles import gamma_profile
from tests.support.example import ROOT
from tests.support.makers import MakeModel
from tests.support.waiting import wait_until
from tests.worker import misbehaviour
from vitviz.errors.kinds import ConfigError, ImageError, LimitError
from vitviz.images.isolated_pictures import PNG_BYTES, OpenPicture, decoded_by, open_picture
from vitviz.images.preprocessing import BACKENDS, FITS, Preprocessing
from vitviz.worker import Limits, Worker, check_limits
from vitviz.worker.child import IS_LINUX, landlock_version
from vitviz.worker.parent import Child

pytestmark = pytest.mark.process


SMALL = Limits(memory_bytes=2**28, cpu_seconds=20, wall_seconds=60)


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    worker = Worker()
    worker.preload = ("tests.torchvision_names", *worker.preload)
    yield worker
    worker.close()


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    noise = np.random.default_rng(0).integers(0, 255, (61, 90, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "photo.png")
    return tmp_path / "photo.png"


# The same numbers.


def check_picture(worker: Worker, path: Path, preprocessing: Preprocessing, fit: str | None = None) -> None:
    """What a child makes of a picture is what the library makes of it."""
    with open_picture(worker, path, path.name) as picture:
        found = picture.model_input(preprocessing, 4, 4, fit, 90)
        picture.fill(found.image)
    image = vitviz.open_image(path)
    expected = preprocessing.prepare(image, 4, 4, fit).resized(min(90, max(image.size)))
    assert picture.size == image.size
    assert torch.equal(found.pixels, expected.pixels) and found.geometry == expected.geometry
    assert np.array_equal(found.image, expected.image) and found.assumptions == expected.assumptions


@pytest.mark.parametrize("fit", [None, *FITS])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_picture_is_prepared_as_the_library_does(
    worker: Worker, make_model: MakeModel, photo: Path, fit: str | None, backend: str
) -> None:
    preprocessing = replace(make_model().preprocessing, backend=backend, interpolation="bicubic", crop_fraction=0.8)
    check_picture(worker, photo, preprocessing, fit)


@pytest.mark.parametrize("format", ["JPEG", "TIFF", "AVIF", "HEIC"])
def test_a_picture_with_a_profile_is_converted_as_the_library_does(
    worker: Worker, make_model: MakeModel, photo: Path, format: str
) -> None:
    path = ROOT / "tests" / "data" / "display_p3.heic"
    if format != "HEIC":
        wide = gamma_profile(1 / 2.2, (0.3127, 0.329, 0.68, 0.32, 0.265, 0.69, 0.15, 0.06))
        path = photo.with_name("wide")
        Image.open(photo).save(path, format, icc_profile=wide)
    model = make_model()
    assert vitviz.analyze(path, model).prepared.assumptions != ()
    check_picture(worker, path, model.preprocessing)


def test_errors_are_those_of_the_library(worker: Worker, tmp_path: Path) -> None:
    (tmp_path / "page.png").write_bytes(b"<html>")
    with pytest.raises(ImageError) as expected:
        vitviz.open_image(tmp_path / "page.png")
    with pytest.raises(ImageError) as found, open_picture(worker, tmp_path / "page.png", "page.png"):
        pass
    assert str(found.value) == str(expected.value)


# What a file could do if it took over the child.

MISBEHAVE = f"{misbehaviour.__name__}:misbehave"


@pytest.fixture(scope="module")
def light() -> Iterator[Worker]:
    """A worker whose fork server imports no reader."""
    yield (worker := light_worker("torch"))
    worker.close()


def light_worker(*preload: str) -> Worker:
    worker = Worker()
    worker.preload = preload
    return worker


def outcome(worker: Worker, kind: str, *arguments: Any, limits: Limits = SMALL) -> str:
    try:
        with worker.child(MISBEHAVE, [], (kind, *arguments), limits, ImageError, "file.png") as child:
            child.part()
            child.part()
    except (ImageError, LimitError) as error:
        return f"{type(error).__name__}: {error}{' (over a limit)' * error.is_over_limit}"
    return "no error"


@pytest.mark.parametrize(
    ("kind", "arguments", "limits", "words"),
    [
        (
            "spin",
            (),
            # short: nothing else has to happen meanwhile, here and below.
            {"cpu_seconds": 0.3},
            "ImageError: file.png: opening it takes more than 0.3 seconds of a processor",
        ),
        # short: as above.
        ("sleep", (), {"wall_seconds": 2.0}, "ImageError: file.png: opening it takes more than 2 seconds"),
        # short: as above.
        ("drip", (), {"wall_seconds": 2.0}, "ImageError: file.png: opening it takes more than 2 seconds"),
        ("allocate", (), {}, "ImageError: file.png: opening it takes more than 268,435,456 bytes of memory"),
        ("allocate a tensor", (), {}, "ImageError: file.png: opening it takes more than 268,435,456 bytes of memory"),
        ("signal", (signal.SIGSEGV,), {}, "gave no answer; expected a whole file"),
        # As the kernel does to a process when the machine runs out of memory: the file may be honest.
        ("signal", (signal.SIGKILL,), {}, "LimitError: file.png: there is too little memory free on this machine"),
        ("leave", (), {}, "gave no answer"),
        ("answer much", (), {}, "gave no answer"),
        ("say much", (), {}, "gave no answer"),
        ("fail", (), {}, "gave no answer"),
        ("write a file", ("/tmp/vitviz-is-not-written",), {}, "gave no answer"),
    ],
)
def test_a_child_beyond_its_limits_is_one_sentence_and_leaves_nothing(
    light: Worker, kind: str, arguments: tuple[Any, ...], limits: dict[str, Any], words: str
) -> None:
    assert words in outcome(light, kind, *arguments, limits=replace(SMALL, **limits))
    # The next file is read.
    with light.child(MISBEHAVE, [], ["answer"], SMALL, ImageError, "file.png") as child:
        child.part()
        assert [child.part(number)[0] for number in (1, 2)] == [{"twice": 2}, {"twice": 4}]


def test_a_processor_is_counted_over_all_parts(light: Worker) -> None:
    # short: a child that has had more than that is ended.
    limits = replace(SMALL, cpu_seconds=0.5)
    with (
        pytest.raises(ImageError, match=r"more than 0\.5 seconds of a processor"),
        light.child(MISBEHAVE, [], ["spin in parts"], limits, ImageError, "file.png") as child,
    ):
        for _ in range(4):
            child.part()


@pytest.mark.skipif(not IS_LINUX, reason="of Linux alone")
def test_where_memory_ends_a_child_ends_rather_than_the_app(light: Worker) -> None:
    with light.child(MISBEHAVE, [], ["sleep"], SMALL, ImageError, "x") as child:
        pid = child.part()[0]["pid"]
        assert Path(f"/proc/{pid}/oom_score_adj").read_text() == "1000\n"


@pytest.mark.skipif(not IS_LINUX, reason="of Linux alone")
def test_a_child_finds_no_secrets(light: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "a secret")
    with light.child(MISBEHAVE, [], ["look around"], SMALL, ImageError, "x") as child:
        child.part()
        facts, _ = child.part()
    assert "HF_TOKEN" not in facts["environment"] and facts["no new privileges"]


def has_huge_pages() -> bool:
    """Whether root reads here which pages of others are huge, and the system and its C library give any."""
    given, version = Path("/sys/kernel/mm/transparent_hugepage/enabled"), os.confstr_names.get("CS_GNU_LIBC_VERSION")
    library = (os.confstr(version) or "") if version is not None else ""
    is_given = given.exists() and "[never]" not in given.read_text()
    return is_given and os.geteuid() == 0 and library.split()[1:] >= ["2.35"]


@pytest.mark.skipif(not has_huge_pages(), reason="no huge pages here")
def test_a_fork_has_few_pages_to_copy(worker: Worker) -> None:
    """Of small ones, it took twice as long."""
    check_limits(worker)
    assert worker._server is not None
    pages = Path(f"/proc/{worker._server[0].pid}/smaps_rollup").read_text()
    huge, anonymous = (int(pages.partition(f"{name}:")[2].split()[0]) for name in ("AnonHugePages", "Anonymous"))
    assert huge > anonymous / 4


@dataclass
class Found:
    """What a child that tries everything finds.

    Args:
        stopped: its attempts, and the errors that stopped them.
        succeeded: the attempts that nothing stopped.
        is_walled: what the start of the app finds.
    """

    stopped: dict[str, str]
    succeeded: set[str]
    is_walled: bool


@pytest.fixture
def attacked(tmp_path: Path) -> Iterator[Callable[..., Found]]:
    """Runs a child that tries everything, of a fork server that begins with these functions of ``misbehaviour``."""
    app = subprocess.Popen(
        [sys.executable, "-c", "import sys, vitviz.worker as w; w.hide_memory(); print(flush=True); sys.stdin.read()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )

    def attack(*changes: str) -> Found:
        worker = light_worker(*(f"{misbehaviour.__name__}:{change}" for change in changes))
        own, others = tmp_path / "own", tmp_path / "files" / "others"
        others.parent.mkdir(0o700, exist_ok=True)
        for path in (own, others):
            path.write_text("content")
            path.chmod(0o600)
        with socket.create_server(("127.0.0.1", 0)) as server, open(own, "rb") as file:
            arguments = str(others), app.pid, server.getsockname()[1]
            reader = f"{misbehaviour.__name__}:attack"
            with worker.child(reader, [file], arguments, SMALL, ImageError, "file.png") as child:
                facts, _ = child.part()
        is_walled = check_limits(worker)
        worker.close()
        # It reads its own file all the same.
        assert facts["content"] == "content"
        succeeded = {name for name, error in facts["found"].items() if not error}
        assert "change its own" in succeeded or own.read_text() == "content"
        if not succeeded & {"change", "rename", "delete", "modes"}:
            assert others.read_text() == "content" and os.listdir(others.parent) == ["others"]
        return Found(facts["found"], succeeded, is_walled)

    with app:
        assert app.stdout is not None and app.stdout.readline()
        yield attack
        assert app.poll() is None
        app.kill()


HAS_LANDLOCK, HAS_SCOPES = landlock_version() > 0, landlock_version() >= 6
# What the limit of descriptors and the files' own modes stop everywhere.
OPENED = {"read", "read the app", "write", "create", "list", "connect", "type into the terminal", "more descriptors"}
OWN = {"map for writing", "write its own", "fork"}


@pytest.mark.skipif(not (IS_LINUX and HAS_LANDLOCK), reason="a kernel with Landlock alone")
def test_a_child_reads_its_own_file_and_reaches_no_other(attacked: Callable[..., Found]) -> None:
    # It has another user where the app is root.
    for changes in ((), ("stay",)):
        found = attacked(*changes)
        # Landlock knows no right over modes, limits and priorities, and early versions none over signals.
        of_own_user = {"modes", "limits of the app", "priority of the app"} | ({"signal"} if not HAS_SCOPES else set())
        # Root forks beyond every limit.
        of_root = {"fork"} if changes and not os.geteuid() else set()
        allowed = of_own_user | of_root if changes or os.geteuid() else set()
        assert found.succeeded <= allowed and found.is_walled, found
        assert {found.stopped[name] for name in ("read", "list", "connect")} == {"EMFILE"}, found


@pytest.mark.skipif(not IS_LINUX or os.geteuid() != 0, reason="root alone has children of another user")
def test_a_child_of_root_is_another_user(attacked: Callable[..., Found]) -> None:
    found = attacked("without_landlock")
    assert found.succeeded == set() and found.is_walled


@pytest.mark.skipif(not IS_LINUX, reason="macOS has no /proc")
def test_a_child_without_a_wall_opens_no_file_and_the_start_says_so(attacked: Callable[..., Found]) -> None:
    found = attacked("without_landlock", "stay")
    assert not found.is_walled
    assert found.stopped["read"] == found.stopped["connect"] == found.stopped["list"] == "EMFILE"
    assert not found.succeeded & (OPENED if os.geteuid() else OPENED - {"more descriptors"})
    assert not found.succeeded & (OWN if os.geteuid() else OWN - {"fork"})


@pytest.mark.parametrize(("size", "nbytes"), [((10, 11), 0), ((10, 10), 400 + PNG_BYTES + 1), ((10, 10), 2**25)])
def test_an_answer_larger_than_its_picture_is_refused(
    light: Worker, make_model: MakeModel, photo: Path, size: tuple[int, int], nbytes: int
) -> None:
    preprocessing = make_model().preprocessing
    uses: list[Callable[[OpenPicture], object]] = [
        lambda picture: picture.png(),
        lambda picture: picture.model_input(preprocessing, 4, 4, None, 90),
    ]
    reader = f"{misbehaviour.__name__}:swell"
    for use in uses:
        with (
            pytest.raises(ImageError, match=r"photo\.png: the process that opened it gave no answer"),
            decoded_by(light, reader, open(photo, "rb"), (size, nbytes), photo.name) as picture,
        ):
            use(picture)


@pytest.mark.parametrize("nbytes", [0, 3, 4, 1000])
def test_an_answer_smaller_than_its_picture_is_refused(
    light: Worker, make_model: MakeModel, photo: Path, nbytes: int
) -> None:
    reader, arguments = f"{misbehaviour.__name__}:swell", ((10, 10), nbytes)
    uses: list[Callable[[OpenPicture], object]] = [
        lambda picture: picture.model_input(make_model().preprocessing, 4, 4, None, 90),
        lambda picture: picture._child.part("png", 2**26) and picture.fill(Image.new("RGB", (10, 10))),
    ]
    for use in uses:
        with (
            pytest.raises(ImageError, match=r"photo\.png: the process that opened it gave no answer"),
            decoded_by(light, reader, open(photo, "rb"), arguments, photo.name) as picture,
        ):
            use(picture)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_the_end_of_a_context_ends_its_child(light: Worker) -> None:
    with light.child(MISBEHAVE, [], ["spin"], SMALL, ImageError, "file.png") as child:
        pid = child.part()[0]["pid"]
        assert _runs(pid)
    wait_until(lambda: not _runs(pid))


def test_the_log_says_where_a_reader_failed_and_nothing_of_the_file(light: Worker, caplog: Any) -> None:
    with light.child(MISBEHAVE, [], ["fail"], SMALL, ImageError, "file.png") as child:
        child.part()
        with pytest.raises(ImageError, match="gave no answer"):
            child.part()
    [record] = caplog.records
    assert record.getMessage() == "a reader failed: 'TypeError in misbehave'"


def test_no_child_outlives_the_app() -> None:
    code = f"""
import sys
from vitviz.worker import Worker, Limits
from vitviz.errors.kinds import ImageError
worker = Worker()
worker.preload = ()
with worker.child("{MISBEHAVE}", [], ["spin"], Limits(2**28, 60, 60), ImageError, "x") as child:
    print(child.part()[0]["pid"], worker._server[0].pid, flush=True)
    sys.stdin.read()
"""
    app = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT)
    with app:
        assert app.stdout is not None
        pids = [int(pid) for pid in app.stdout.readline().split()]
        assert len(pids) == 2 and all(map(_runs, pids))
        app.kill()
    wait_until(lambda: not any(map(_runs, pids)))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="macOS has no /proc")
def test_children_share_the_processor_by_their_priorities_and_hear_no_keys() -> None:
    code = f"""
import os
from pathlib import Path
from vitviz.errors.kinds import ImageError
from vitviz.worker import Limits, Worker
worker = Worker()
worker.preload = ()
with worker.child("{MISBEHAVE}", [], ["spin"], Limits(2**28, 60, 60, niceness=7), ImageError, "x") as child:
    for pid in (os.getpid(), worker._server[0].pid, child.part()[0]["pid"]):
        print(pid, *Path(f"/proc/{{pid}}/stat").read_text().rpartition(")")[2].split()[2:17], flush=True)
"""
    on_terminal = [sys.executable, "-c", f"import pty; pty.spawn({[sys.executable, '-c', code]})"]
    output = subprocess.run(on_terminal, stdin=subprocess.DEVNULL, capture_output=True, cwd=ROOT, check=True).stdout
    (app, server, child) = ([int(number) for number in line.split()] for line in output.splitlines())
    # Of each: its group, which is not that of the terminal, its session (proc_pid_stat(5)), and its priority.
    assert app[:3] == [app[0]] * 3 and app[3]
    assert server[1:3] == child[1:3] == [server[0], app[0]]
    assert server[-1] == app[-1] and child[-1] == min(19, app[-1] + 7)


def test_a_fork_server_that_is_gone_is_started_anew_and_ends_with_its_worker() -> None:
    worker = light_worker()
    with worker.child(MISBEHAVE, [], ["spin"], SMALL, ImageError, "file.png") as child:
        pid = child.part()[0]["pid"]
        assert worker._server is not None
        first = worker._server[0]
        first.kill()
        first.wait()
        with pytest.raises(LimitError, match="try again later"):
            child.part()
    wait_until(lambda: not _runs(pid))
    assert outcome(worker, "leave").startswith("ImageError")
    second = worker._server[0]
    assert second.pid != first.pid and second.poll() is None
    worker.close()
    assert second.poll() is not None


def test_a_fork_server_that_ends_meanwhile_refuses_a_file_but_not_for_good(
    light: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def send_fds(*_: Any) -> None:
        raise BrokenPipeError

    with monkeypatch.context() as patch:
        patch.setattr(socket, "send_fds", send_fds)
        assert "LimitError: file.png: there is too little memory free" in outcome(light, "answer")
    with light.child(MISBEHAVE, [], ["answer"], SMALL, ImageError, "file.png") as child:
        assert child.part()[0]["pid"]


def test_a_machine_without_a_free_process_refuses_a_file_but_not_for_good() -> None:
    worker = light_worker(f"{misbehaviour.__name__}:refuse_forks")
    for _ in range(2):
        assert "LimitError: file.png: there is too little memory free" in outcome(worker, "answer")
    assert worker._server is not None and worker._server[0].poll() is None
    with pytest.raises(ConfigError, match="cannot be opened safely on this system"):
        check_limits(worker)
    worker.close()


def test_limits_that_hold_let_the_app_start(light: Worker) -> None:
    check_limits(light)


HEAD = json.dumps({"facts": {}}).encode()
# As multiprocessing.connection writes the length of a message.
LENGTH, LONG = struct.Struct("!i"), struct.Struct("!iQ")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x01",
        LENGTH.pack(len(HEAD)) + HEAD[:-1],
        LENGTH.pack(len(HEAD)) + HEAD,
        LENGTH.pack(-2) + HEAD,
        LONG.pack(-1, 2**63) + HEAD,
        LENGTH.pack(len(HEAD)) + HEAD + LONG.pack(-1, 2**40),
        LENGTH.pack(len(HEAD)) + HEAD + LENGTH.pack(2) + b"xy",
        LENGTH.pack(2) + b"[]" + LENGTH.pack(0),
        LENGTH.pack(60_000) + b"[" * 60_000 + LENGTH.pack(0),
        LENGTH.pack(200_000) + b"[" * 200_000 + LENGTH.pack(0),
        LENGTH.pack(len(pickle.dumps({}))) + pickle.dumps({}) + LENGTH.pack(0),
    ],
)
def test_a_malformed_answer_is_refused(content: bytes) -> None:
    ours, theirs = socket.socketpair()
    life, end = socket.socketpair()
    with ours, theirs, life, end:
        end.sendall((0).to_bytes(4, "little"))
        theirs.sendall(content)
        theirs.shutdown(socket.SHUT_WR)
        with pytest.raises(ImageError, match="gave no answer"):
            Child(Connection(ours.detach()), life, SMALL, ImageError, "file.png").part()
