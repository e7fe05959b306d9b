"""A file of the hub comes whole and verified or not at all, goes on after a break, and says how far it is."""

from __future__ import annotations

import json
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
from huggingface_hub import constants
from huggingface_hub.utils import WeakFileLock

from tests.downloads import (
    CONFIG,
    CONTENT,
    NAME,
    SHA256,
    TOTAL,
    WEIGHTS,
    cached,
    partial,
    ranges,
    refused,
    run,
    steady,
    storage,
)
from tests.hub_server import HubServer, git_hash
from vitviz.weights.hub import client as hub_client
from vitviz.weights.hub import names as hub
from vitviz.weights.hub.names import Progress, download, is_cached


@pytest.fixture
def server() -> Iterator[HubServer]:
    with HubServer() as server:
        yield server


@pytest.fixture(autouse=True)
def home(server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache of its own, and no long waits."""
    server.use(monkeypatch, tmp_path / "home")
    monkeypatch.setattr(hub_client, "WAIT", 0.001)
    yield tmp_path / "home"
    huggingface_hub.close_session()


@pytest.fixture
def commit(server: HubServer) -> str:
    """The usual repository."""
    return server.add(NAME, {"config.json": CONFIG, WEIGHTS: CONTENT, "README.md": b"# ViT"}, lfs=(WEIGHTS,))


@pytest.fixture
def every_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Enough time between any two."""
    monkeypatch.setattr(hub, "time", SimpleNamespace(monotonic=iter(range(10**9)).__next__))


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_client, "PATIENCE", 0.6)
    monkeypatch.setattr(hub_client, "ATTEMPTS", 2)
    monkeypatch.setattr(constants, "HF_HUB_ETAG_TIMEOUT", 0.2)
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.2)


def wait_until(true: Callable[[], bool]) -> None:
    until = time.monotonic() + 30
    while not true():
        assert time.monotonic() < until
        time.sleep(0.02)


# How far it is.


def test_shards_are_reported_together_with_their_index(server: HubServer) -> None:
    shards = {"model-1.safetensors": CONTENT, "model-2.safetensors": CONTENT[::-1]}
    index = json.dumps({"weight_map": {name: name for name in shards}}).encode()
    server.add(NAME, {"config.json": CONFIG, f"{WEIGHTS}.index.json": index, **shards}, lfs=tuple(shards))
    reports: list[Progress] = []
    download(NAME, report=reports.append)
    assert {report.total for report in reports} == {len(CONFIG) + len(index) + 2 * len(CONTENT)}
    done = steady(reports)
    assert done[0] == len(CONFIG) + len(index)
    assert done[-1] == reports[0].total


def test_there_are_at_most_ten_reports_a_second(
    server: HubServer, commit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, chunks = 0.0, 0
    at = hub.Meter.at

    def tick(meter: hub.Meter, name: str, count: int) -> None:
        nonlocal now, chunks
        now, chunks = now + 0.01, chunks + 1
        at(meter, name, count)

    monkeypatch.setattr(hub.Meter, "at", tick)
    monkeypatch.setattr(hub, "time", SimpleNamespace(monotonic=lambda: now))
    reports: list[Progress] = []
    download(NAME, report=reports.append)
    assert chunks > 15
    assert chunks / 10 - 1 <= len(reports) <= chunks / 10 + 2
    assert steady(reports)[-1] == TOTAL


class Stopped(Exception):
    pass


@pytest.mark.usefixtures("every_report")
@pytest.mark.parametrize("error", [Stopped(), OSError(32, "Broken pipe"), KeyboardInterrupt()], ids=repr)
def test_what_a_report_raises_ends_the_download_and_the_next_goes_on(
    server: HubServer, commit: str, home: Path, error: BaseException
) -> None:
    def stop(progress: Progress) -> None:
        if progress.done > TOTAL / 3:
            raise error

    with pytest.raises(type(error)) as caught:
        download(NAME, report=stop)
    assert caught.value is error
    assert not is_cached(NAME)
    there = partial(home).stat().st_size
    assert there > TOTAL / 4
    server.log.clear()
    reports: list[Progress] = []
    download(NAME, report=reports.append)
    assert ranges(server.requests(f"GET {WEIGHTS}")) == [f"bytes={there}-"]
    assert steady(reports)[0] == there + len(CONFIG)


# After a break.


def test_a_broken_connection_goes_on_where_it_was(server: HubServer, commit: str) -> None:
    server.fault("drop", f"GET {WEIGHTS}", after=500_000, times=2)
    reports: list[Progress] = []
    folder = download(NAME, report=reports.append)
    assert (folder / WEIGHTS).read_bytes() == CONTENT
    assert ranges(server.requests(f"GET {WEIGHTS}")) == [None, "bytes=500000-", "bytes=1000000-"]
    steady(reports)


def test_one_that_breaks_again_and_again_is_given_up_and_the_next_goes_on(
    server: HubServer, commit: str, home: Path
) -> None:
    server.fault("drop", f"GET {WEIGHTS}", after=1000)
    with refused("broke off again and again", f"of 1.5 MB of {WEIGHTS}", "download it again to go on"):
        download(NAME)
    asked = ranges(server.requests(f"GET {WEIGHTS}"))
    assert asked == [None, *(f"bytes={1000 * times}-" for times in range(1, hub_client.ATTEMPTS))]
    assert cached(home) == {f"blobs/{git_hash(CONFIG)}", f"snapshots/{commit}/config.json"}
    server.repair()
    server.log.clear()
    reports: list[Progress] = []
    folder = download(NAME, report=reports.append)
    assert (folder / WEIGHTS).read_bytes() == CONTENT
    there = 1000 * hub_client.ATTEMPTS
    assert ranges(server.requests(f"GET {WEIGHTS}")) == [f"bytes={there}-"]
    assert steady(reports)[0] == there + len(CONFIG)
    assert not partial(home).exists()


def test_as_long_as_it_brings_much_a_connection_may_break_often(
    server: HubServer, commit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_client, "STEP", 100_000)
    server.fault("drop", f"GET {WEIGHTS}", after=hub_client.STEP)
    assert (download(NAME) / WEIGHTS).read_bytes() == CONTENT
    assert len(server.requests(f"GET {WEIGHTS}")) > 2 * hub_client.ATTEMPTS


@pytest.mark.usefixtures("every_report")
def test_a_server_that_cannot_go_on_is_asked_for_everything(server: HubServer, commit: str) -> None:
    server.fault("drop", f"GET {WEIGHTS}", after=500_000, times=1)
    server.fault("no range", f"GET {WEIGHTS}")
    reports: list[Progress] = []
    assert (download(NAME, report=reports.append) / WEIGHTS).read_bytes() == CONTENT
    assert ranges(server.requests(f"GET {WEIGHTS}")) == [None, "bytes=500000-"]
    done = steady(reports)
    assert done[-1] == TOTAL
    assert len(done) > 10


def test_after_a_process_was_killed_the_next_goes_on(server: HubServer, commit: str, home: Path) -> None:
    # Less than a file holds back on its own.
    server.fault("stall", f"GET {WEIGHTS}", after=1000, times=1)
    with run(server, home, f"download({NAME!r})") as process:
        wait_until(lambda: partial(home).exists() and partial(home).stat().st_size == 1000)
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    assert not is_cached(NAME)
    folder = download(NAME)
    assert (folder / WEIGHTS).read_bytes() == CONTENT
    assert ranges(server.requests(f"GET {WEIGHTS}")) == [None, "bytes=1000-"]


@pytest.mark.usefixtures("every_report")
@pytest.mark.parametrize("linked", [True, False])
def test_two_at_once_ask_for_the_content_once(
    server: HubServer, commit: str, linked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_SYMLINKS", not linked)
    server.fault("stall", f"GET {WEIGHTS}", after=1_000_000, times=1)
    found: list[Path] = []
    told: list[list[Progress]] = [[], []]

    def work(number: int) -> None:
        found.append(download(NAME, report=told[number].append))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    # The one that waits is told how far the other is.
    wait_until(lambda: all(reports and reports[-1].done > TOTAL / 2 for reports in told))
    server.repair()
    for thread in threads:
        thread.join()
    assert len(found) == 2
    assert found[0] == found[1]
    assert ranges(server.requests(f"GET {WEIGHTS}")) == [None, "bytes=1000000-"]
    assert [steady(reports)[-1] for reports in told] == [TOTAL, TOTAL]


def test_a_lock_that_nobody_gives_back_is_named(server: HubServer, commit: str, home: Path, impatient: None) -> None:
    lock = home / "hub" / ".locks" / storage(home).name / f"{SHA256}.vitviz.lock"
    lock.parent.mkdir(parents=True)
    with WeakFileLock(lock), refused("another process", lock.name):
        download(NAME)


def test_a_file_that_is_in_xet_comes_by_http_and_goes_on(server: HubServer) -> None:
    server.add(NAME, {"config.json": CONFIG, WEIGHTS: CONTENT}, xet=(WEIGHTS,))
    found = huggingface_hub.get_hf_file_metadata(huggingface_hub.hf_hub_url(NAME, WEIGHTS))
    assert found.xet_file_data is not None
    server.log.clear()
    server.fault("drop", f"GET {WEIGHTS}", after=500_000, times=1)
    assert (download(NAME) / WEIGHTS).read_bytes() == CONTENT
    assert ranges(server.requests(f"GET {WEIGHTS}")) == [None, "bytes=500000-"]
    assert not server.requests("xet")


# What is verified.


def test_a_damaged_file_is_deleted_and_the_next_download_brings_it(server: HubServer, commit: str, home: Path) -> None:
    for name, damaged in ((WEIGHTS, SHA256), ("config.json", git_hash(CONFIG))):
        server.fault("corrupt", f"GET {name}", times=1)
        with refused(f"{name} arrived damaged", "download it again"):
            download(NAME)
        assert not [path for path in home.rglob("*") if damaged in path.name and "lock" not in path.name]
        assert not list(home.rglob(name))
        folder = download(NAME)
        assert (folder / name).read_bytes() == {WEIGHTS: CONTENT, "config.json": CONFIG}[name]
        shutil.rmtree(home)


@pytest.mark.usefixtures("every_report")
def test_more_than_the_stated_size_is_not_received(server: HubServer, commit: str, home: Path) -> None:
    server.fault("size", f"HEAD {WEIGHTS}", after=1000 - len(CONTENT))
    server.fault("no length", f"GET {WEIGHTS}")
    most = 0

    def watch(_: Progress) -> None:
        nonlocal most
        most = max(most, partial(home).stat().st_size if partial(home).exists() else 0)

    with refused(f"{WEIGHTS} arrived damaged"):
        download(NAME, report=watch)
    assert most < 500_000
    assert not partial(home).exists()


def test_an_answer_may_be_of_no_stated_length(server: HubServer, commit: str) -> None:
    server.fault("no length", "GET")
    server.fault("drop", f"GET {WEIGHTS}", after=1000, times=1)
    assert (download(NAME) / WEIGHTS).read_bytes() == CONTENT


def test_a_file_may_be_of_no_stated_size(server: HubServer, home: Path) -> None:
    server.add(NAME, {"config.json": CONFIG, WEIGHTS: CONTENT})
    server.fault("no length")
    begun = storage(home) / "blobs" / f"{git_hash(CONTENT)}.vitviz.incomplete"
    begun.parent.mkdir(parents=True)
    begun.write_bytes(CONTENT)
    server.fault("corrupt", f"GET {WEIGHTS}", times=1)
    with refused(f"{WEIGHTS} arrived damaged"):
        download(NAME)
    reports: list[Progress] = []
    assert (download(NAME, report=reports.append) / WEIGHTS).read_bytes() == CONTENT
    assert {report.total for report in reports} == {None}
    assert steady(reports)[-1] == TOTAL


def test_a_page_in_place_of_the_rest_leaves_what_there_is(server: HubServer, commit: str, home: Path) -> None:
    server.fault("html", f"GET {WEIGHTS}")
    partial(home).parent.mkdir(parents=True)
    partial(home).write_bytes(CONTENT[:1_000_000])
    with refused("something else"):
        download(NAME)
    assert partial(home).stat().st_size == 1_000_000
    server.repair()
    assert (download(NAME) / WEIGHTS).read_bytes() == CONTENT
    assert ranges(server.requests(f"GET {WEIGHTS}"))[-1] == "bytes=1000000-"


def test_a_beginning_that_is_another_files_is_found_out(server: HubServer, commit: str, home: Path) -> None:
    partial(home).parent.mkdir(parents=True)
    partial(home).write_bytes(bytes(1000))
    with refused(f"{WEIGHTS} arrived damaged"):
        download(NAME)
    assert (download(NAME) / WEIGHTS).read_bytes() == CONTENT


def test_a_damaged_blob_that_somebody_left_is_not_linked(server: HubServer, commit: str, home: Path) -> None:
    blob = storage(home) / "blobs" / SHA256
    blob.parent.mkdir(parents=True)
    blob.write_bytes(CONTENT[:-1])
    assert (download(NAME) / WEIGHTS).read_bytes() == CONTENT


# What passes, and what does not.


@pytest.mark.parametrize("kind", [500, 429, "drop"])
@pytest.mark.parametrize("on", ["GET list", "HEAD config.json", f"GET {WEIGHTS}"])
def test_what_passes_is_waited_for(server: HubServer, commit: str, kind: str | int, on: str) -> None:
    server.fault(kind, on, times=hub_client.ATTEMPTS - 1)
    assert (download(NAME) / WEIGHTS).read_bytes() == CONTENT
    assert len(server.requests(on)) == hub_client.ATTEMPTS


@pytest.mark.parametrize(
    ("status", "header", "wait"),
    [
        (429, {"Retry-After": "7"}, 7),
        (503, {"Retry-After": "7"}, 7),
        (429, {"RateLimit": '"api";r=0;t=7'}, 7),
        (429, {"RateLimit": '"api";r=7;t=290'}, 0.001),
        (500, {"RateLimit": '"api";r=0;t=290'}, 0.001),
    ],
)
def test_the_hub_says_when_it_wants_to_be_asked_again(
    server: HubServer, commit: str, status: int, header: dict[str, str], wait: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(hub_client, "time", SimpleNamespace(monotonic=time.monotonic, sleep=waits.append))
    server.fault(status, "GET list", times=1, headers=header)
    assert (download(NAME) / WEIGHTS).read_bytes() == CONTENT
    assert waits == [wait]


@pytest.mark.parametrize("header", [{"Retry-After": "290"}, {"RateLimit": '"api"; r=0; t=290'}], ids=str)
def test_a_wait_of_minutes_is_left_to_the_user(server: HubServer, commit: str, header: dict[str, str]) -> None:
    server.fault(429, "GET list", headers=header)
    with refused("too often (429)", "in 290 s"):
        download(NAME)
    assert len(server.log) == 1


@pytest.mark.parametrize("on", ["GET list", "HEAD config.json", f"GET {WEIGHTS}"])
@pytest.mark.usefixtures("impatient")
def test_a_server_that_says_nothing_is_given_up(server: HubServer, commit: str, on: str) -> None:
    server.fault("stall", on, after=1000 * on.startswith(f"GET {WEIGHTS}"))
    with refused("broke off" if WEIGHTS in on else "no answer in time"):
        download(NAME)
    if WEIGHTS in on:
        assert ranges(server.requests(on)) == [None, "bytes=1000-"]


# The disk.


def test_a_full_disk_is_found_out_before(
    server: HubServer, commit: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type(shutil.disk_usage("/"))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**9, 10**9, 1_000_000))
    with refused("1.5 MB to download", "has 1.0 MB left", "HF_HOME", "(HF_HUB_CACHE)"):
        download(NAME)
    assert not server.requests(f"GET {WEIGHTS}")
    # What is there needs no more room.
    partial(home).parent.mkdir(parents=True)
    partial(home).write_bytes(CONTENT[:1_000_000])
    assert (download(NAME) / WEIGHTS).read_bytes() == CONTENT


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_disk_that_fills_up_is_told(server: HubServer, commit: str, home: Path) -> None:
    partial(home).parent.mkdir(parents=True)
    partial(home).symlink_to("/dev/full")
    with refused("the disk of the cache", "is full", "HF_HOME"):
        download(NAME)
    partial(home).unlink()
    assert (download(NAME) / WEIGHTS).read_bytes() == CONTENT


def test_a_cache_that_cannot_be_written_is_told(server: HubServer, commit: str, home: Path) -> None:
    home.mkdir()
    (home / "hub").write_text("a file where the folder should be")
    with refused("the cache", "(HF_HUB_CACHE)", "Not a directory", "HF_HOME"):
        download(NAME)
