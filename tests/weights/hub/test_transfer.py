"""A file of the hub comes whole and verified or not at all, resumes after a break, and reports its progress."""

from __future__ import annotations

import errno
import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
from huggingface_hub import constants, file_download

from tests.downloads import (
    CONFIG,
    CONTENT,
    NAME,
    SHA256,
    TOTAL,
    WEIGHTS,
    bytes_done,
    cache_folder,
    cached_files,
    expect_refusal,
    newer_client,
    ranges,
)
from tests.hub_server import HubServer, close_session
from tests.support.hub_answers import git_hash
from vitviz.progress import DownloadProgress
from vitviz.weights.hub import download as hub_download
from vitviz.weights.hub.download import ProgressMeter, download
from vitviz.weights.hub.names import is_cached

pytestmark = pytest.mark.slow


@pytest.fixture
def server() -> Iterator[HubServer]:
    with HubServer() as server:
        yield server


@pytest.fixture(autouse=True)
def home(server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache of its own, no long waits, and many chunks in a small file."""
    server.use(monkeypatch, tmp_path / "home", DOWNLOAD_CHUNK_SIZE=50_000)
    yield tmp_path / "home"
    close_session()


@pytest.fixture
def commit(server: HubServer) -> str:
    """The usual repository."""
    return server.add(NAME, {"config.json": CONFIG, WEIGHTS: CONTENT, "README.md": b"# ViT"}, lfs=(WEIGHTS,))


@pytest.fixture
def every_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Enough time between any two."""
    monkeypatch.setattr(hub_download, "time", SimpleNamespace(monotonic=iter(range(10**9)).__next__))


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
    reports: list[DownloadProgress] = []
    download(NAME, report=reports.append)
    assert {report.total for report in reports} == {len(CONFIG) + len(index) + 2 * len(CONTENT)}
    done = bytes_done(reports)
    assert done[0] == len(CONFIG) + len(index)
    assert done[-1] == reports[0].total


@newer_client
def test_there_are_at_most_ten_reports_a_second(
    server: HubServer, commit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, chunks = 0.0, 0
    at = ProgressMeter.update

    def tick(meter: ProgressMeter, done: int, always: bool = False) -> None:
        nonlocal now, chunks
        now, chunks = now + 0.01, chunks + (not always)
        at(meter, done, always)

    monkeypatch.setattr(ProgressMeter, "update", tick)
    monkeypatch.setattr(hub_download, "time", SimpleNamespace(monotonic=lambda: now))
    reports: list[DownloadProgress] = []
    download(NAME, report=reports.append)
    assert chunks > 15
    assert chunks / 10 - 1 <= len(reports) <= chunks / 10 + 2
    assert bytes_done(reports)[-1] == TOTAL


class Stopped(Exception):
    pass


@newer_client
@pytest.mark.usefixtures("every_report")
@pytest.mark.parametrize("error", [Stopped(), OSError(32, "Broken pipe"), OSError("no"), KeyboardInterrupt()], ids=repr)
def test_what_a_report_raises_ends_the_download(
    server: HubServer, commit: str, home: Path, error: BaseException
) -> None:
    reports: list[int] = []

    def stop(progress: DownloadProgress) -> None:
        reports.append(progress.done)
        if progress.done > TOTAL / 3:
            raise error

    with pytest.raises(type(error)) as caught:
        download(NAME, report=stop)
    assert caught.value is error
    assert reports[-1] < TOTAL / 2
    assert not is_cached(NAME)
    assert cached_files(home) == {f"blobs/{git_hash(CONFIG)}", f"snapshots/{commit}/config.json"}
    assert not list(home.rglob("*.incomplete"))
    done: list[DownloadProgress] = []
    download(NAME, report=done.append)
    assert bytes_done(done)[0] == len(CONFIG)


# After a break.


@newer_client
def test_a_broken_connection_goes_on_where_it_was(server: HubServer, commit: str) -> None:
    server.fault("drop", f"GET {WEIGHTS}", after=500_000, times=2)
    reports: list[DownloadProgress] = []
    folder = download(NAME, report=reports.append)
    assert (folder / WEIGHTS).read_bytes() == CONTENT
    assert ranges(server.requests(f"GET {WEIGHTS}")) == [None, "bytes=500000-", "bytes=1000000-"]
    bytes_done(reports)


def test_a_connection_that_brings_nothing_is_given_up(server: HubServer, commit: str, home: Path) -> None:
    server.fault("drop", f"GET {WEIGHTS}", after=1000)
    with expect_refusal("cannot be reached", "the network"):
        download(NAME)
    assert cached_files(home) == {f"blobs/{git_hash(CONFIG)}", f"snapshots/{commit}/config.json"}
    server.repair()
    assert (download(NAME) / WEIGHTS).read_bytes() == CONTENT


@newer_client
def test_a_server_that_falls_silent_is_given_up(
    server: HubServer, commit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.1)
    server.fault("stall", f"GET {WEIGHTS}", after=100_000, times=1)
    server.fault("stall", f"GET {WEIGHTS}")
    with expect_refusal("cannot be reached", "timed out"):
        download(NAME)


@newer_client
@pytest.mark.usefixtures("every_report")
@pytest.mark.parametrize("linked", [True, False])
def test_two_at_once_share_what_comes(
    server: HubServer, commit: str, linked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_SYMLINKS", not linked)
    server.fault("stall", f"GET {WEIGHTS}", after=1_000_000, times=1)
    found: list[Path] = []
    reports: list[list[DownloadProgress]] = [[], []]

    def work(number: int) -> None:
        found.append(download(NAME, report=reports[number].append))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    # Both have asked about the weights, and one receives them.
    wait_until(lambda: any(seen and seen[-1].done > TOTAL / 2 for seen in reports))
    wait_until(lambda: len(server.requests(f"HEAD {WEIGHTS}")) >= 3)
    server.repair()
    for thread in threads:
        thread.join()
    assert len(found) == 2
    assert found[0] == found[1]
    # Without links, huggingface_hub does not see that the file has come meanwhile, and may bring it again.
    if linked:
        assert ranges(server.requests(f"GET {WEIGHTS}")) == [None, "bytes=1000000-"]
    assert [bytes_done(seen)[-1] for seen in reports] == [TOTAL, TOTAL]
    assert not constants.HF_HUB_DISABLE_XET, "the switch of the process is back"


@newer_client
@pytest.mark.usefixtures("every_report")
def test_a_server_that_cannot_go_on_is_asked_for_everything(server: HubServer, commit: str) -> None:
    server.fault("drop", f"GET {WEIGHTS}", after=500_000, times=1)
    server.fault("no range", f"GET {WEIGHTS}")
    reports: list[DownloadProgress] = []
    assert (download(NAME, report=reports.append) / WEIGHTS).read_bytes() == CONTENT
    assert ranges(server.requests(f"GET {WEIGHTS}")) == [None, "bytes=500000-"]
    done = bytes_done(reports)
    assert done[-1] == TOTAL
    assert len(done) > 10


@newer_client
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
        with expect_refusal(f"{name} arrived damaged", "download it again"):
            download(NAME)
        assert not [path for path in home.rglob("*") if damaged in path.name and "lock" not in path.name]
        assert not list(home.rglob(name))
        folder = download(NAME)
        assert (folder / name).read_bytes() == {WEIGHTS: CONTENT, "config.json": CONFIG}[name]
        shutil.rmtree(home)


@newer_client
def test_more_than_the_stated_size_is_not_received(
    server: HubServer, commit: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lfs = {"sha256": SHA256, "size": 1000, "pointerSize": 130}
    listing = {"id": NAME, "sha": commit, "siblings": [{"rfilename": WEIGHTS, "size": 1000, "lfs": lfs}]}
    server.answers["list"] = json.dumps(listing).encode()
    received = []
    monkeypatch.setattr(ProgressMeter, "update", lambda meter, done, always=False: received.append(done))
    server.fault("size", f"HEAD {WEIGHTS}", after=1000 - len(CONTENT))
    server.fault("no length", f"GET {WEIGHTS}")
    with expect_refusal("sent something else than the file"):
        download(NAME)
    assert max(received) <= 1000
    assert not list(home.rglob("*.incomplete"))


@newer_client
def test_a_file_may_be_of_no_stated_size(server: HubServer) -> None:
    server.add(NAME, {"config.json": CONFIG, WEIGHTS: CONTENT})
    server.fault("no length")
    server.fault("corrupt", f"GET {WEIGHTS}", times=1)
    with expect_refusal(f"{WEIGHTS} arrived damaged"):
        download(NAME)
    reports: list[DownloadProgress] = []
    assert (download(NAME, report=reports.append) / WEIGHTS).read_bytes() == CONTENT
    assert {report.total for report in reports} == {TOTAL}
    assert bytes_done(reports)[-1] == TOTAL


def test_a_damaged_blob_in_the_cache_is_deleted(server: HubServer, commit: str, home: Path) -> None:
    blob = cache_folder(home) / "blobs" / SHA256
    blob.parent.mkdir(parents=True)
    blob.write_bytes(CONTENT[:-1])
    with expect_refusal(f"{WEIGHTS} arrived damaged", "was deleted", "download it again"):
        download(NAME)
    assert (download(NAME) / WEIGHTS).read_bytes() == CONTENT


def test_a_commit_other_than_the_one_asked_for_is_refused(
    server: HubServer, commit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    described = file_download.get_hf_file_metadata
    monkeypatch.setattr(
        "huggingface_hub.file_download.get_hf_file_metadata",
        lambda *a, **k: replace(described(*a, **k), commit_hash="0" * 40),
    )
    with expect_refusal("states no hash"):
        download(NAME)


def test_an_answer_may_be_of_no_stated_length(server: HubServer, commit: str) -> None:
    server.fault("no length", "GET")
    assert (download(NAME) / WEIGHTS).read_bytes() == CONTENT


# What passes, and what does not.


@newer_client
@pytest.mark.parametrize(
    ("kind", "on"),
    [(kind, on) for kind in (500, "drop") for on in ("HEAD config.json", f"HEAD {WEIGHTS}")]
    + [(429, f"GET {WEIGHTS}"), ("drop", f"GET {WEIGHTS}")],
)
def test_what_passes_is_waited_for(server: HubServer, commit: str, kind: str | int, on: str) -> None:
    server.fault(kind, on, times=3)
    assert (download(NAME) / WEIGHTS).read_bytes() == CONTENT
    assert len(server.requests(on)) >= 4


@pytest.mark.parametrize("on", ["GET list", "HEAD config.json"])
def test_a_server_that_says_nothing_is_given_up(
    server: HubServer, commit: str, on: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_ETAG_TIMEOUT", 0.1)
    server.fault("stall", on)
    with expect_refusal("cannot be reached", "timed out"):
        download(NAME)


@pytest.mark.parametrize("header", [{"Retry-After": "290"}, {"RateLimit": '"api"; r=0; t=290'}], ids=str)
def test_a_wait_of_minutes_is_left_to_the_user(server: HubServer, commit: str, header: dict[str, str]) -> None:
    server.fault(429, "GET list", headers=header)
    with expect_refusal("too often (429)", "in 290 s"):
        download(NAME)
    assert len(server.log) == 1


# The disk.


def test_a_disk_that_fills_up_is_told(server: HubServer, commit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("huggingface_hub.file_download.http_get", fill)
        with expect_refusal("the disk of the cache", "is full", "HF_HOME"):
            download(NAME)
    assert (download(NAME) / WEIGHTS).read_bytes() == CONTENT


def test_a_cache_that_cannot_be_written_is_told(server: HubServer, commit: str, home: Path) -> None:
    home.mkdir()
    (home / "hub").write_text("a file where the folder should be")
    with expect_refusal("the cache", "(HF_HUB_CACHE)", "Not a directory", "HF_HOME"):
        download(NAME)
