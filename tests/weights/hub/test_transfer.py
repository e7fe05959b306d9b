"""A file of the hub comes whole and verified or not at all, resumes after a break, and reports its progress."""

from __future__ import annotations

import errno
import json
import logging
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.downloads import (
    CONFIG,
    CONTENT,
    NAME,
    SHA256,
    TOTAL,
    WEIGHTS,
    bytes_done,
    cached_files,
    expect_refusal,
    newer_client,
)
from tests.hub_server import HubServer
from tests.support.hub_answers import git_hash
from vitviz.progress import DownloadProgress
from vitviz.weights.hub import download as hub_download
from vitviz.weights.hub.download import ProgressMeter, download
from vitviz.weights.hub.names import is_cached
from vitviz.weights.hub.refusals import explain

pytestmark = pytest.mark.slow


@pytest.fixture
def every_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Enough time between any two."""
    monkeypatch.setattr(hub_download, "time", SimpleNamespace(monotonic=iter(range(10**9)).__next__))


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


def test_there_are_at_most_ten_reports_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(1000)).__next__
    monkeypatch.setattr(hub_download, "time", SimpleNamespace(monotonic=lambda: now() / 100))
    reports: list[DownloadProgress] = []
    meter = ProgressMeter(NAME, reports.append, TOTAL)
    for done in range(0, TOTAL, TOTAL // 200):
        meter.update(done)
    # In two seconds.
    assert 15 < len(reports) <= 20
    meter.update(TOTAL + 1, always=True)
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
@pytest.mark.usefixtures("every_report")
@pytest.mark.parametrize("xet", [(), (WEIGHTS,)], ids=["large", "in Xet"])
@pytest.mark.parametrize("fault", ["drop", "no range"])
def test_after_a_break_the_rest_comes_and_nothing_is_said(
    server: HubServer, xet: tuple[str, ...], fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.add(NAME, {"config.json": CONFIG, WEIGHTS: CONTENT}, lfs=(WEIGHTS,), xet=xet)
    server.fault("drop", f"GET {WEIGHTS}", after=500_000, times=1)
    server.fault(fault, f"GET {WEIGHTS}", after=500_000, times=2)
    logged: list[object] = []
    (handler,) = logging.getLogger("huggingface_hub").handlers
    monkeypatch.setattr(handler, "emit", logged.append)
    reports: list[DownloadProgress] = []
    assert (download(NAME, report=reports.append) / WEIGHTS).read_bytes() == CONTENT
    broken = [None, "bytes=500000-", "bytes=1000000-"]
    assert [each.range for each in server.requests(f"GET {WEIGHTS}")] == broken[: 2 + (fault == "drop")]
    assert len(bytes_done(reports)) > 10 and reports[-1].done == TOTAL
    assert not server.requests("xet") and logged == []


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
    server.fault("headers", f"HEAD {WEIGHTS}", headers={"X-Linked-Size": "1000"})
    server.fault("no length", f"GET {WEIGHTS}")
    with expect_refusal("sent something else than the file"):
        download(NAME)
    assert max(received) <= 1000
    assert not list(home.rglob("*.incomplete"))


def test_an_answer_may_be_of_no_stated_length(server: HubServer, commit: str) -> None:
    server.fault("no length")
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


@pytest.mark.parametrize("header", [{"Retry-After": "290"}, {"RateLimit": '"api"; r=0; t=290'}], ids=str)
def test_a_wait_of_minutes_is_left_to_the_user(server: HubServer, commit: str, header: dict[str, str]) -> None:
    server.fault(429, "GET list", headers=header)
    with expect_refusal("too often (429)", "in 290 s"):
        download(NAME)
    assert len(server.log) == 1


# The disk.


def test_a_disk_that_fills_up_is_told() -> None:
    for code in (errno.ENOSPC, errno.EDQUOT):
        assert re.match("the disk of the cache.* is full.* HF_HOME", explain(OSError(code, "No space left"), NAME, ""))


def test_a_cache_that_cannot_be_written_is_told(server: HubServer, commit: str, home: Path) -> None:
    home.mkdir()
    (home / "hub").write_text("a file where the folder should be")
    with expect_refusal("the cache", "(HF_HUB_CACHE)", "Not a directory", "HF_HOME"):
        download(NAME)
