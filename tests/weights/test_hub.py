"""A checkpoint of the hub is one set of weights, in the hub's own cache; what is wrong is one sentence."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import constants

from tests.hub_server import HubServer, close_session, counts_bytes
from vitviz import CheckpointError
from vitviz.progress import DownloadProgress
from vitviz.weights.hub import download, is_cached

pytestmark = pytest.mark.slow

NAME = "someone/vit-small"
WEIGHTS = "model.safetensors"
CONFIG = b'{"model_type": "vit"}'
CONTENT = random.Random(0).randbytes(500_000)
TOTAL = len(CONFIG) + len(CONTENT)


@pytest.fixture(autouse=True)
def home(server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own, and several chunks in a small file."""
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 50_000)
    return tmp_path / "home"


@pytest.fixture
def commit(server: HubServer) -> str:
    """The usual repository."""
    return server.add(NAME, {"config.json": CONFIG, WEIGHTS: CONTENT, "README.md": b"# ViT"})


@contextmanager
def expect_refusal(*fragments: str, name: str = NAME) -> Iterator[None]:
    """The body is refused with one sentence that names the repository, and no folder of this machine."""
    with pytest.raises(CheckpointError) as caught:
        yield
    message = str(caught.value)
    assert message.startswith(f"{name}: "), message
    for fragment in fragments:
        assert fragment in message, f"{fragment!r} is not in {message!r}"
    assert "\n" not in message and len(message) < 600
    assert not any(str(folder) in message for folder in (constants.HF_HUB_CACHE, constants.HF_HOME, Path.home()))


# What arrives.


def test_a_checkpoint_arrives_with_the_json_files_beside_it(server: HubServer, commit: str, home: Path) -> None:
    assert not is_cached(NAME)
    folder = download(NAME)
    assert folder == home / "hub" / f"models--{NAME.replace('/', '--')}" / "snapshots" / commit
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == {"config.json": CONFIG, WEIGHTS: CONTENT}
    assert is_cached(NAME)


@counts_bytes
def test_the_bytes_that_arrive_are_reported(server: HubServer, commit: str) -> None:
    reports: list[DownloadProgress] = []
    download(NAME, report=reports.append)
    done = [report.done for report in reports]
    assert {(report.repository, report.total) for report in reports} == {(NAME, TOTAL)}
    assert (done[0], done[-1]) == (0, TOTAL) and len(done) > 5


@counts_bytes
def test_what_a_report_raises_ends_the_download(server: HubServer, commit: str) -> None:
    class Stopped(Exception):
        pass

    def stop(progress: DownloadProgress) -> None:
        if progress.done > TOTAL / 3:
            raise Stopped

    with pytest.raises(Stopped):
        download(NAME, report=stop)
    assert not is_cached(NAME)
    assert (download(NAME) / WEIGHTS).read_bytes() == CONTENT


def test_what_is_there_is_not_asked_for_again(server: HubServer, commit: str) -> None:
    folder = download(NAME)
    server.log.clear()
    reports: list[DownloadProgress] = []
    assert download(NAME, report=reports.append) == folder
    assert server.log == ["GET list"] and not reports


def test_a_new_commit_brings_only_what_changed(server: HubServer, commit: str) -> None:
    before = download(NAME)
    server.add(NAME, {"config.json": b"{}", WEIGHTS: CONTENT})
    server.log.clear()
    after = download(NAME)
    assert after != before and (after / "config.json").read_bytes() == b"{}"
    assert (after / WEIGHTS).read_bytes() == CONTENT and not server.requests(f"GET {WEIGHTS}")
    assert download(NAME, revision=commit) == before


def test_a_branch_and_a_commit_can_be_asked_for(server: HubServer, commit: str) -> None:
    old = server.add(NAME, {WEIGHTS: b"old"}, revision="refs/pr/1")
    assert download(NAME, revision=commit).name == commit
    assert not is_cached(NAME, revision="refs/pr/1")
    assert (download(NAME, revision="refs/pr/1") / WEIGHTS).read_bytes() == b"old"
    assert is_cached(NAME, revision="refs/pr/1") and is_cached(NAME, revision=old) and is_cached(NAME, revision=commit)


def test_what_another_program_left_out_is_fetched(server: HubServer, commit: str) -> None:
    theirs = Path(huggingface_hub.hf_hub_download(NAME, WEIGHTS)).parent
    assert is_cached(NAME)
    server.log.clear()
    assert download(NAME) == theirs and (theirs / "config.json").read_bytes() == CONFIG
    assert not server.requests(f"GET {WEIGHTS}")


# What is chosen.

INDEX = json.dumps({"weight_map": {"a": "model-1-of-2.safetensors", "b": "model-2-of-2.safetensors"}}).encode()
BIN_INDEX = json.dumps({"weight_map": {"a": "pytorch_model-1-of-1.bin"}}).encode()
CHOICES: dict[str, tuple[dict[str, bytes], set[str]]] = {
    "safetensors first": (
        {WEIGHTS: b"1", "pytorch_model.bin": b"2", "tf_model.h5": b"3", "flax_model.msgpack": b"4", "model.onnx": b"5"},
        {WEIGHTS},
    ),
    "its shards": (
        {f"{WEIGHTS}.index.json": INDEX, "model-1-of-2.safetensors": b"1", "model-2-of-2.safetensors": b"2"}
        | {"pytorch_model.bin": b"3", "model.fp16-1-of-2.safetensors": b"4"},
        {f"{WEIGHTS}.index.json", "model-1-of-2.safetensors", "model-2-of-2.safetensors"},
    ),
    "open_clip": (
        {"open_clip_model.safetensors": b"1", "open_clip_pytorch_model.bin": b"2", "open_clip_config.json": b"{}"},
        {"open_clip_model.safetensors", "open_clip_config.json"},
    ),
    "shards of torch": (
        {"pytorch_model.bin.index.json": BIN_INDEX, "pytorch_model-1-of-1.bin": b"1"},
        {"pytorch_model.bin.index.json", "pytorch_model-1-of-1.bin"},
    ),
    "the only file": ({"dino small.pth": b"1", "notes.txt": b"2", "onnx/model.pth": b"3"}, {"dino small.pth"}),
    "every file that is read beside them": (
        {WEIGHTS: b"1", "config.json": b"2", "preprocessor_config.json": b"3", "processor_config.json": b"4"}
        | {"tokenizer.json": b"5", "merges.txt": b"6", "1_Pooling/config.json": b"7", "trainer_state.json": b"8"},
        {WEIGHTS, "config.json", "preprocessor_config.json", "processor_config.json", "tokenizer.json", "merges.txt"},
    ),
}


@pytest.mark.parametrize(("there", "chosen"), CHOICES.values(), ids=CHOICES)
def test_one_set_of_weights_is_chosen(server: HubServer, there: dict[str, bytes], chosen: set[str]) -> None:
    server.add(NAME, there)
    folder = download(NAME)
    assert {file.name for file in folder.iterdir()} == chosen
    server.close()
    assert download(NAME) == folder and is_cached(NAME)


NO_CHOICE: dict[str, tuple[dict[str, bytes], list[str]]] = {
    "several": ({"a.pth": b"1", "b.pth": b"2"}, ["2 files of weights, 'a.pth', 'b.pth'", WEIGHTS]),
    "other formats": ({"tf_model.h5": b"1", "README.md": b"2"}, ["no weights, only 'tf_model.h5' (HDF5", WEIGHTS]),
    "in a folder": ({"onnx/model.safetensors": b"1"}, ["no weights; expected"]),
    "nothing": ({}, ["no weights; expected"]),
}


@pytest.mark.parametrize(("there", "found"), NO_CHOICE.values(), ids=NO_CHOICE)
def test_no_set_or_several_are_refused_with_what_there_is(
    server: HubServer, there: dict[str, bytes], found: list[str]
) -> None:
    server.add(NAME, there)
    with expect_refusal(*found):
        download(NAME)
    assert server.log == ["GET list"]


# What is refused.


@pytest.mark.parametrize("token", ["", "hf_someones"])
@pytest.mark.parametrize(
    ("kind", "found"),
    [
        ("gated", ["gated: accept its terms", f"https://huggingface.co/{NAME}", "HF_TOKEN"]),
        ("no repository", ["no such repository", "private", "HF_TOKEN"]),
        (403, ["cannot be downloaded", "403", f"`vitviz inspect hf:{NAME}`"]),
    ],
)
def test_what_the_hub_refuses_is_one_sentence(
    server: HubServer, commit: str, monkeypatch: pytest.MonkeyPatch, kind: str | int, found: list[str], token: str
) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    server.fault(kind)
    with expect_refusal(*found):
        download(NAME)
    assert not is_cached(NAME)


def test_weights_may_be_gated_where_the_list_of_files_is_not(server: HubServer, commit: str) -> None:
    server.fault("gated", WEIGHTS)
    with expect_refusal("gated: accept its terms"):
        download(NAME)
    assert not is_cached(NAME)


def test_a_revision_that_the_repository_does_not_have(server: HubServer, commit: str) -> None:
    with expect_refusal("no revision 'v2'; expected a branch, a tag or a commit"):
        download(NAME, revision="v2")


@pytest.mark.parametrize("name", ["a/b/c", "../evil", "a--b/c", "https://x/y", "a b/c"])
def test_what_is_no_name_of_a_repository(server: HubServer, name: str) -> None:
    with expect_refusal("not a repository of the Hugging Face hub; expected owner/name", name=name):
        download(name)
    assert not server.log


def test_a_cache_that_cannot_be_written(server: HubServer, commit: str, home: Path) -> None:
    home.mkdir()
    (home / "hub").write_text("a file where the folder should be")
    with expect_refusal("(HF_HUB_CACHE)", "Not a directory"):
        download(NAME)


# Without a network.


def test_what_is_in_the_cache_needs_no_server(server: HubServer, commit: str) -> None:
    folder = download(NAME)
    server.close()
    for revision in (None, "main", commit):
        assert download(NAME, revision) == folder


@pytest.mark.parametrize("kind", [500, "no repository", "gated"])
def test_what_is_in_the_cache_is_used_where_the_hub_refuses(
    server: HubServer, commit: str, kind: str | int, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = download(NAME)
    server.fault(kind)
    assert download(NAME) == folder


def test_a_branch_that_is_gone_is_not_used(server: HubServer, commit: str) -> None:
    download(NAME)
    server.fault("no revision")
    with expect_refusal("no revision 'main'"):
        download(NAME)


def test_offline_nothing_is_asked(server: HubServer, commit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = download(NAME)
    server.log.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    # Earlier releases of the client look at it when they make a session.
    close_session()
    assert download(NAME) == folder
    with expect_refusal("not in the cache", "HF_HUB_OFFLINE", "`vitviz inspect hf:someone/else`", name="someone/else"):
        download("someone/else")
    assert not server.log


def test_without_weights_there_is_nothing_to_use(server: HubServer, commit: str) -> None:
    (download(NAME) / WEIGHTS).unlink()
    server.close()
    assert not is_cached(NAME)
    with expect_refusal("not in the cache (HF_HUB_CACHE)", server.url, f"`vitviz inspect hf:{NAME}`"):
        download(NAME)
