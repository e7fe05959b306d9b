"""A checkpoint of the hub is one set of weights, in the hub's own cache; what is wrong is said in one sentence."""

from __future__ import annotations

import json
import logging
import threading
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import constants

from tests.downloads import (
    CONFIG,
    CONTENT,
    NAME,
    TOTAL,
    WEIGHTS,
    bytes_done,
    cache_folder,
    expect_refusal,
)
from tests.hub_server import HubServer
from vitviz import CheckpointError
from vitviz.progress import DownloadProgress
from vitviz.weights.hub import download as hub_download
from vitviz.weights.hub.download import download
from vitviz.weights.hub.names import is_cached

pytestmark = pytest.mark.slow

# What arrives.


def test_a_checkpoint_arrives_with_the_json_files_beside_it(server: HubServer, commit: str, home: Path) -> None:
    assert not is_cached(NAME)
    reports: list[DownloadProgress] = []
    folder = download(NAME, report=reports.append)
    assert folder == cache_folder(home) / "snapshots" / commit
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == {"config.json": CONFIG, WEIGHTS: CONTENT}
    assert is_cached(NAME)
    assert {report.total for report in reports} == {TOTAL}
    done = bytes_done(reports)
    assert (done[0], done[-1]) == (len(CONFIG), TOTAL)


def test_the_hubs_own_client_finds_what_arrived(server: HubServer, commit: str, home: Path) -> None:
    folder = download(NAME)
    server.close()
    assert huggingface_hub.hf_hub_download(NAME, WEIGHTS, local_files_only=True) == str(folder / WEIGHTS)
    assert not huggingface_hub.scan_cache_dir(home / "hub").warnings


def test_what_is_there_is_not_asked_for_again(server: HubServer, commit: str) -> None:
    folder = download(NAME)
    server.log.clear()
    reports: list[DownloadProgress] = []
    assert download(NAME, report=reports.append) == folder
    assert [request.target for request in server.log] == ["GET list"]
    assert download(NAME, revision=commit) == folder
    assert len(server.log) == 1
    assert not reports


def test_a_new_commit_brings_only_what_changed(server: HubServer, commit: str) -> None:
    before = download(NAME)
    server.add(NAME, {"config.json": b"{}", WEIGHTS: CONTENT}, lfs=(WEIGHTS,))
    server.log.clear()
    after = download(NAME)
    assert after != before
    assert (after / "config.json").read_bytes() == b"{}"
    assert (after / WEIGHTS).read_bytes() == CONTENT
    assert not server.requests(f"GET {WEIGHTS}")
    assert download(NAME, revision=commit) == before


def test_a_branch_and_a_commit_can_be_asked_for(server: HubServer, commit: str) -> None:
    old = server.add(NAME, {WEIGHTS: b"old"}, revision="refs/pr/1")
    assert download(NAME, revision=commit).name == commit
    assert not is_cached(NAME, revision="refs/pr/1")
    assert (download(NAME, revision="refs/pr/1") / WEIGHTS).read_bytes() == b"old"
    assert download(NAME, revision="refs/pr/1").name == old
    assert is_cached(NAME, revision="refs/pr/1")
    assert is_cached(NAME, revision=old)
    assert is_cached(NAME, revision=commit)
    assert not is_cached(NAME), "nobody has asked for the main branch"


def test_an_empty_file_arrives(server: HubServer) -> None:
    server.add(NAME, {"config.json": b"", WEIGHTS: CONTENT})
    assert (download(NAME) / "config.json").read_bytes() == b""


# What is chosen.

INDEX = json.dumps({"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}).encode()
BIN_INDEX = json.dumps({"weight_map": {"a": "pytorch_model-1.bin"}}).encode()
CHOICES: dict[str, tuple[dict[str, bytes], set[str]]] = {
    "safetensors first": (
        {WEIGHTS: b"1", "pytorch_model.bin": b"2", "tf_model.h5": b"3", "flax_model.msgpack": b"4", "model.onnx": b"5"},
        {WEIGHTS},
    ),
    "its shards": (
        {f"{WEIGHTS}.index.json": INDEX, "model-1.safetensors": b"1", "model-2.safetensors": b"2"}
        | {"pytorch_model.bin": b"3", "model-3.safetensors": b"4"},
        {f"{WEIGHTS}.index.json", "model-1.safetensors", "model-2.safetensors"},
    ),
    "open_clip": (
        {"open_clip_model.safetensors": b"1", "open_clip_pytorch_model.bin": b"2", "open_clip_config.json": b"{}"},
        {"open_clip_model.safetensors", "open_clip_config.json"},
    ),
    "torch": ({"pytorch_model.bin": b"1", "training_args.bin": b"2", "tf_model.h5": b"3"}, {"pytorch_model.bin"}),
    "shards of torch": (
        {"pytorch_model.bin.index.json": BIN_INDEX, "pytorch_model-1.bin": b"1"},
        {"pytorch_model.bin.index.json", "pytorch_model-1.bin"},
    ),
    "open_clip of torch": ({"open_clip_pytorch_model.bin": b"1", "other.bin": b"2"}, {"open_clip_pytorch_model.bin"}),
    "the only file": ({"dino small.pth": b"1", "notes.txt": b"2", "onnx/model.pth": b"3"}, {"dino small.pth"}),
    "the only array": ({"ViT-B_16.npz": b"1", "x.h5": b"2"}, {"ViT-B_16.npz"}),
    "safetensors of a pair": ({"dino.pth": b"1", "dino.safetensors": b"2"}, {"dino.safetensors"}),
    "every json that is read": (
        {WEIGHTS: b"1", "config.json": b"2", "preprocessor_config.json": b"3", "processor_config.json": b"4"}
        | {"tokenizer.json": b"5", "vocab.json": b"6", "1_Pooling/config.json": b"7"},
        {WEIGHTS, "config.json", "preprocessor_config.json", "processor_config.json"},
    ),
}


@pytest.mark.parametrize(("there", "chosen"), CHOICES.values(), ids=CHOICES)
def test_one_set_of_weights_is_chosen(server: HubServer, there: dict[str, bytes], chosen: set[str]) -> None:
    server.add(NAME, there)
    folder = download(NAME)
    assert {file.name for file in folder.iterdir()} == chosen
    assert {request.target for request in server.log} == {"GET list"} | {
        f"{method} {name}" for method in ("HEAD", "GET") for name in chosen
    }
    assert is_cached(NAME)
    server.close()
    assert download(NAME) == folder


NO_CHOICE: dict[str, tuple[dict[str, bytes], list[str]]] = {
    "several": ({"a.pth": b"1", "b.pth": b"2"}, ["2 files of weights, 'a.pth', 'b.pth'", WEIGHTS]),
    "many": ({f"{letter}.bin": b"" for letter in "abcdefgh"}, ["8 files of weights", "'d.bin' and 4 more"]),
    "other formats": ({"tf_model.h5": b"1", "README.md": b"2"}, ["no weights", "'README.md', 'tf_model.h5'", WEIGHTS]),
    "in a folder": ({"onnx/model.safetensors": b"1"}, ["no files"]),
    "nothing": ({}, ["no files"]),
    "a control character": ({"a\x1b[31m.pth": b"1"}, ["no files"]),
}


@pytest.mark.parametrize(("there", "found"), NO_CHOICE.values(), ids=NO_CHOICE)
def test_no_set_or_several_are_refused_with_what_there_is(
    server: HubServer, there: dict[str, bytes], found: list[str]
) -> None:
    server.add(NAME, there)
    with expect_refusal(*found):
        download(NAME)
    assert len(server.log) == 1


def indexed(*shards: object) -> bytes:
    return json.dumps({"weight_map": {str(number): shard for number, shard in enumerate(shards)}}).encode()


INDEXES: dict[str, tuple[bytes, str]] = {
    "outside": (indexed("../../evil.safetensors"), "'../../evil.safetensors'"),
    "absolute": (indexed("/etc/passwd"), "'/etc/passwd'"),
    "in a folder": (indexed("other/model.safetensors"), "'other/model.safetensors'"),
    "not there": (indexed("model-1.safetensors", "model-9.safetensors"), "'model-9.safetensors'"),
    "no names": (indexed(1, 2), "without a weight_map"),
    "mixed": (indexed("model-1.safetensors", 2), "without a weight_map"),
    "unhashable": (indexed(["model-1.safetensors"]), "without a weight_map"),
    "empty": (indexed(), "without a weight_map"),
    "no map": (b"{}", "without a weight_map"),
    "a list": (b"[]", "cannot be read"),
    "no JSON": (b"\xff{", "cannot be read"),
    "nested": (b"[" * 100_000, "cannot be read"),
}


@pytest.mark.parametrize(("index", "found"), INDEXES.values(), ids=INDEXES)
def test_an_index_names_files_of_the_repository_or_is_refused(
    server: HubServer, home: Path, index: bytes, found: str
) -> None:
    content = {f"{WEIGHTS}.index.json": index, "model-1.safetensors": b"1", "code.bin": b"2"}
    server.add(NAME, {**content, "other/model.safetensors": b"3"})
    with expect_refusal(f"{WEIGHTS}.index.json", found):
        download(NAME)
    assert [request.target for request in server.log if ".index.json" not in request.target] == ["GET list"]
    assert not list(home.rglob("*evil*"))


def test_an_index_of_any_size_is_not_read(server: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitviz.weights.formats.files.MAX_HEADER_BYTES", 10)
    server.add(NAME, {f"{WEIGHTS}.index.json": INDEX, "model-1.safetensors": b"1", "model-2.safetensors": b"2"})
    with expect_refusal(f"{WEIGHTS}.index.json: JSON of {len(INDEX)} bytes"):
        download(NAME)


# Names that lead elsewhere.

NO_REPOSITORIES = (
    "vit",
    "",
    "/",
    "a/b/c",
    "../evil",
    "a/..",
    "./a",
    "a/b.git",
    "a--b/c",
    "a b/c",
    "https://x/y",
    "a/ü",
)


@pytest.mark.parametrize("name", [*NO_REPOSITORIES, "a/b\n", "-a/b", "a/b-", ".a/b", "a/b.", "a/" + "b" * 97])
def test_what_is_no_name_of_a_repository_is_refused(server: HubServer, home: Path, name: str) -> None:
    for call in (download, is_cached):
        with pytest.raises(CheckpointError, match=r"not a repository .*; expected owner/name"):
            call(name)
    assert not server.log
    assert not home.exists()


@pytest.mark.parametrize("revision", ["../../x", "a/../b", "/etc", "", " ", "a\n", "a//b", "refs/"])
def test_what_is_no_name_of_a_revision_is_refused(server: HubServer, commit: str, revision: str) -> None:
    for call in (download, is_cached):
        with pytest.raises(CheckpointError, match=r"no revision .*; expected a branch, a tag or a commit"):
            call(NAME, revision)
    assert not server.log


@pytest.mark.parametrize("name", ["../evil.safetensors", "/evil.safetensors", "..\\evil.safetensors", ".safetensors"])
def test_no_file_of_the_server_leaves_the_cache(server: HubServer, home: Path, name: str) -> None:
    server.add(NAME, {name: b"evil"})
    with expect_refusal("no files"):
        download(NAME)
    server.add(NAME, {name: b"evil", WEIGHTS: CONTENT})
    download(NAME)
    assert not list(home.parent.rglob("*evil*"))


@pytest.mark.parametrize(
    "header",
    [
        *({"ETag": f'"{etag}"'} for etag in ("../../../evil", "/tmp/evil", "evil", "W/" + "0" * 39, "")),
        *({"X-Repo-Commit": commit} for commit in ("../../evil", "0" * 40)),
    ],
    ids=str,
)
def test_no_hash_of_the_server_leaves_the_cache(
    server: HubServer, commit: str, home: Path, header: dict[str, str]
) -> None:
    server.fault("headers", headers=header)
    with expect_refusal("states no hash"):
        download(NAME)
    assert not list(home.parent.rglob("*evil*"))


@pytest.mark.parametrize("evil", ["../../evil", "main", "", "0" * 41])
def test_no_commit_of_the_server_leaves_the_cache(server: HubServer, home: Path, evil: str) -> None:
    server.add(NAME, {WEIGHTS: CONTENT}, commit=evil or " ")
    with expect_refusal("does not answer as a Hugging Face hub"):
        download(NAME)
    assert not home.exists()


LISTS = {
    "a list": b"[]",
    "no files": b'{"id": "x", "sha": "%s", "siblings": [{}]}' % (b"0" * 40),
    "no text": b'{"id": "x", "sha": 7}',
    "null": b"null",
}


@pytest.mark.parametrize("answer", LISTS.values(), ids=LISTS)
def test_an_answer_that_is_no_list_of_files_is_refused(
    server: HubServer, monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    server.answers["list"] = answer
    with expect_refusal("does not answer as a Hugging Face hub"):
        download(NAME)


# The settings of the hub's client.


def test_downloads_at_once_avoid_xet_until_the_last_has_ended() -> None:
    before = constants.HF_HUB_DISABLE_XET
    with hub_download._download_settings():
        with hub_download._download_settings():
            pass
        assert constants.HF_HUB_DISABLE_XET
    assert not before and not constants.HF_HUB_DISABLE_XET


def test_the_hubs_client_is_quiet_for_no_other_thread() -> None:
    (handler,) = logging.getLogger("huggingface_hub").handlers
    record = logging.makeLogRecord({"msg": "Retrying"})
    heard: list[object] = []
    with hub_download._download_settings():
        assert not handler.filter(record)
        thread = threading.Thread(target=lambda: heard.append(handler.filter(record)))
        thread.start()
        thread.join()
    assert heard[0] and handler.filter(record)
