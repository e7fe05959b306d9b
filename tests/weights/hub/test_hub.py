"""A checkpoint of the hub is one set of weights, in the hub's own cache; what is wrong is said in one sentence."""

from __future__ import annotations

import json
import logging
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import constants

from tests.downloads import CONFIG, CONTENT, NAME, SHA256, TOTAL, WEIGHTS, cached, refused, run, steady, storage
from tests.hub_server import HubServer
from vitviz import CheckpointError
from vitviz.weights.hub import client, names
from vitviz.weights.hub.download import DownloadProgress, download
from vitviz.weights.hub.names import is_cached


@pytest.fixture
def server() -> Iterator[HubServer]:
    with HubServer() as server:
        yield server


@pytest.fixture(autouse=True)
def home(server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache of its own, and no long waits."""
    server.use(monkeypatch, tmp_path / "home")
    yield tmp_path / "home"
    huggingface_hub.close_session()


@pytest.fixture
def commit(server: HubServer) -> str:
    """The usual repository."""
    return server.add(NAME, {"config.json": CONFIG, WEIGHTS: CONTENT, "README.md": b"# ViT"}, lfs=(WEIGHTS,))


# What arrives.


def test_a_checkpoint_arrives_with_the_json_files_beside_it(server: HubServer, commit: str, home: Path) -> None:
    assert not is_cached(NAME)
    reports: list[DownloadProgress] = []
    folder = download(NAME, report=reports.append)
    assert folder == storage(home) / "snapshots" / commit
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == {"config.json": CONFIG, WEIGHTS: CONTENT}
    assert is_cached(NAME)
    assert {report.total for report in reports} == {TOTAL}
    done = steady(reports)
    assert (done[0], done[-1]) == (0, TOTAL)


def test_the_cache_is_the_hubs_own(server: HubServer, commit: str, tmp_path: Path, home: Path) -> None:
    folder = download(NAME)
    theirs = huggingface_hub.snapshot_download(NAME, cache_dir=tmp_path / "theirs", allow_patterns=["*.json", WEIGHTS])
    root = Path(theirs).parents[1]
    expected = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_symlink() or path.is_file()}
    assert cached(home) == {path for path in expected if not path.startswith("trees")}
    for path in cached(home):
        assert (storage(home) / path).is_symlink() == (root / path).is_symlink(), path
        assert (storage(home) / path).read_bytes() == (root / path).read_bytes(), path
    server.close()
    assert huggingface_hub.hf_hub_download(NAME, WEIGHTS, local_files_only=True) == str(folder / WEIGHTS)
    assert not huggingface_hub.scan_cache_dir(home / "hub").warnings


def test_what_is_there_is_not_asked_for_again(server: HubServer, commit: str) -> None:
    folder = download(NAME)
    server.log.clear()
    reports: list[DownloadProgress] = []
    assert download(NAME, report=reports.append) == folder
    assert [request.what for request in server.log] == ["GET list"]
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


def test_where_there_are_no_links_the_files_are_in_the_snapshot(
    commit: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_SYMLINKS", True)
    folder = download(NAME)
    assert not (folder / WEIGHTS).is_symlink()
    assert (folder / WEIGHTS).read_bytes() == CONTENT
    assert not any((storage(home) / "blobs").iterdir())


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
    assert {request.what for request in server.log} == {"GET list"} | {
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
    with refused(*found):
        download(NAME)
    assert len(server.log) == 1


def indexed(*shards: object) -> bytes:
    return json.dumps({"weight_map": {str(number): shard for number, shard in enumerate(shards)}}).encode()


INDEXES: dict[str, tuple[bytes, str]] = {
    "outside": (indexed("../../evil.safetensors"), "'../../evil.safetensors'"),
    "absolute": (indexed("/etc/passwd"), "'/etc/passwd'"),
    "in a folder": (indexed("other/model.safetensors"), "'other/model.safetensors'"),
    "not there": (indexed("model-1.safetensors", "model-9.safetensors"), "'model-9.safetensors'"),
    "another format": (indexed("model-1.safetensors", "code.bin"), "'code.bin'"),
    "no names": (indexed(1, 2), "names 1"),
    "mixed": (indexed("model-1.safetensors", 2), "does not say"),
    "unhashable": (indexed(["model-1.safetensors"]), "does not say"),
    "empty": (indexed(), "does not say"),
    "no map": (b"{}", "does not say"),
    "a list": (b"[]", "does not say"),
    "no JSON": (b"\xff{", "does not say"),
    "nested": (b"[" * 100_000, "does not say"),
}


@pytest.mark.parametrize(("index", "found"), INDEXES.values(), ids=INDEXES)
def test_an_index_names_files_of_the_repository_or_is_refused(
    server: HubServer, home: Path, index: bytes, found: str
) -> None:
    content = {f"{WEIGHTS}.index.json": index, "model-1.safetensors": b"1", "code.bin": b"2"}
    server.add(NAME, {**content, "other/model.safetensors": b"3"})
    with refused(f"{WEIGHTS}.index.json", found):
        download(NAME)
    assert [request.what for request in server.log if ".index.json" not in request.what] == ["GET list"]
    assert not list(home.rglob("*evil*"))


def test_an_index_of_any_size_is_not_read(server: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "MAX_INDEX", 10)
    server.add(NAME, {f"{WEIGHTS}.index.json": INDEX, "model-1.safetensors": b"1", "model-2.safetensors": b"2"})
    with refused("does not say"):
        download(NAME)


# What the hub refuses.

FAULTS: dict[str, tuple[str | int, str, list[str]]] = {
    "gated": ("gated", "model.safetensors", ["gated", f"https://huggingface.co/{NAME}", "HF_TOKEN"]),
    "gated altogether": ("gated", "", ["gated", f"https://huggingface.co/{NAME}", "HF_TOKEN"]),
    "no repository": ("no repository", "", ["no such repository", "private", "HF_TOKEN"]),
    "a file is missing": ("no file", "HEAD config", ["missing", "another revision"]),
    "a file goes missing": ("no file", f"GET {WEIGHTS}", ["missing", "another revision"]),
    "a bad token": ("bad token", "", ["refuses access (401)", "HF_TOKEN"]),
    "forbidden": (403, "", ["refuses access (403)", "HF_TOKEN"]),
    "forbidden content": (403, f"GET {WEIGHTS}", ["refuses access (403)", "HF_TOKEN"]),
    "too many requests": (429, "", ["too often (429)", "later", "HF_TOKEN"]),
    "too many for the content": (429, f"GET {WEIGHTS}", ["too often (429)"]),
    "a bad request": (400, "", ["error (400)"]),
    "a server error": (500, "", ["error (500)", "later"]),
    "a server error in the content": (503, f"GET {WEIGHTS}", ["error (503)", "later"]),
    "a page for the list": ("html", "GET list", ["does not answer as a Hugging Face hub", "HF_ENDPOINT"]),
    "a page for a file's facts": ("html", "HEAD", ["no hash", "HF_ENDPOINT"]),
    "a page for the content": ("html", f"GET {WEIGHTS}", [f"something else than {WEIGHTS}", "log in"]),
    "less than the content": ("truncate", f"GET {WEIGHTS}", [f"something else than {WEIGHTS}"]),
}


KNOWN = ("gated", "gated altogether", "no repository", "a bad token")


@pytest.mark.parametrize(
    ("kind", "on", "found", "token"),
    [(*FAULTS[name], "") for name in FAULTS] + [(*FAULTS[name], "hf_someones") for name in KNOWN],
    ids=[*FAULTS, *(f"{name}, with a token" for name in KNOWN)],
)
def test_what_the_hub_refuses_is_said_in_one_sentence(
    server: HubServer,
    commit: str,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str | int,
    on: str,
    found: list[str],
    token: str,
) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    server.fault(kind, on)
    with refused(*found):
        download(NAME)
    assert not list(home.rglob(WEIGHTS))
    server.repair()
    assert (download(NAME) / WEIGHTS).read_bytes() == CONTENT


def test_a_revision_that_the_repository_does_not_have(server: HubServer, commit: str) -> None:
    with refused("no revision 'v2'"):
        download(NAME, revision="v2")


# The token.


def test_the_token_goes_to_the_hub_and_nowhere_else(
    server: HubServer, commit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_someones")
    server.fault("drop", f"GET {WEIGHTS}", after=1000, times=1)
    download(NAME)
    sent = {request.what: request.authorization for request in server.log}
    assert sent.pop(f"GET {WEIGHTS}") is None, "the content is at another origin"
    assert set(sent.values()) == {"Bearer hf_someones"}


def test_a_token_that_cannot_be_one_is_not_shown(
    server: HubServer, commit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_ä")
    with pytest.raises(CheckpointError, match="HF_TOKEN has characters") as caught:
        download(NAME)
    assert "hf_" not in str(caught.value)


# Without a network.


def test_what_is_in_the_cache_needs_no_server(server: HubServer, commit: str) -> None:
    folder = download(NAME)
    server.close()
    for revision in (None, "main", commit):
        assert is_cached(NAME, revision)
        assert download(NAME, revision) == folder


@pytest.mark.parametrize("kind", [500, 429, "html", "no repository", "gated", "bad token"])
def test_what_is_in_the_cache_is_used_where_the_hub_has_nothing_to_say(
    server: HubServer, commit: str, kind: str | int
) -> None:
    folder = download(NAME)
    server.log.clear()
    server.fault(kind)
    assert download(NAME) == folder
    assert len(server.log) == 1


def test_a_branch_that_is_no_more_is_not_used(server: HubServer, commit: str) -> None:
    download(NAME)
    server.fault("no revision")
    with pytest.raises(CheckpointError, match="no revision 'main'"):
        download(NAME)


def test_offline_nothing_is_asked(server: HubServer, commit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = download(NAME)
    server.log.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert download(NAME) == folder
    with refused("not completely in the cache", "(HF_HUB_CACHE)", "HF_HUB_OFFLINE", name="someone/else"):
        download("someone/else")
    assert not server.log


def test_without_a_network_an_incomplete_set_is_no_set(
    server: HubServer, commit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (download(NAME) / WEIGHTS).unlink()
    server.close()
    with refused("cannot be reached", "refused", "the cache", "(HF_HUB_CACHE)", "HF_HUB_OFFLINE"):
        download(NAME)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with refused("not completely in the cache"):
        download(NAME)


def test_a_missing_shard_is_missed(server: HubServer) -> None:
    server.add(NAME, {f"{WEIGHTS}.index.json": INDEX, "model-1.safetensors": b"1", "model-2.safetensors": b"2"})
    folder = download(NAME)
    (folder / "model-2.safetensors").unlink()
    assert not is_cached(NAME)
    server.log.clear()
    assert download(NAME) == folder
    assert is_cached(NAME)
    assert {request.what for request in server.log} == {"GET list", "HEAD model-2.safetensors"}


def test_a_link_to_nothing_is_no_file(server: HubServer, commit: str, home: Path) -> None:
    folder = download(NAME)
    (storage(home) / "blobs" / SHA256).unlink()
    assert not is_cached(NAME)
    assert (download(NAME) / WEIGHTS).read_bytes() == CONTENT
    assert is_cached(NAME)
    assert (folder / WEIGHTS).is_symlink()


def test_a_cache_that_cannot_be_written_is_good_for_reading(
    server: HubServer, commit: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = download(NAME, commit)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    for name in ("mkdir", "write_text", "symlink_to"):
        monkeypatch.setattr(Path, name, refuse)
    assert download(NAME) == folder


def test_files_that_the_hubs_own_client_brought_are_used(server: HubServer, commit: str) -> None:
    theirs = huggingface_hub.snapshot_download(NAME)
    assert is_cached(NAME)
    server.log.clear()
    assert download(NAME) == Path(theirs)
    assert [request.what for request in server.log] == ["GET list"]


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
    with refused("no files"):
        download(NAME)
    server.add(NAME, {name: b"evil", WEIGHTS: CONTENT})
    download(NAME)
    assert not list(home.parent.rglob("*evil*"))


@pytest.mark.parametrize("etag", ["../../../evil", "/tmp/evil", "evil", "W/" + "0" * 39, ""])
def test_no_hash_of_the_server_leaves_the_cache(server: HubServer, commit: str, home: Path, etag: str) -> None:
    server.fault("hash", headers={"ETag": etag})
    with refused("states no hash"):
        download(NAME)
    assert not list(home.parent.rglob("*evil*"))


@pytest.mark.parametrize("evil", ["../../evil", "main", "", "0" * 41])
def test_no_commit_of_the_server_leaves_the_cache(server: HubServer, home: Path, evil: str) -> None:
    server.add(NAME, {WEIGHTS: CONTENT}, commit=evil or " ")
    with refused("does not answer as a Hugging Face hub"):
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
    with refused("does not answer as a Hugging Face hub"):
        download(NAME)


# A process of its own.

TELL = """
import json, sys, types, warnings
assert "huggingface_hub" not in sys.modules, "importing vitviz loads the hub's client"
import huggingface_hub.file_download, huggingface_hub.utils._http
for module in (huggingface_hub.file_download, huggingface_hub.utils._http):
    module.time = types.SimpleNamespace(sleep=lambda _: None)
warnings.simplefilter("always")
for name in sys.argv[1:]:
    told = []
    try:
        print(json.dumps([str(download(name, report=told.append)), told[-1].done]))
    except Exception as error:
        print(json.dumps([type(error).__name__, str(error)]))
assert "hf_xet" not in sys.modules
"""


def test_the_environment_holds_and_nothing_but_one_sentence_is_said(server: HubServer, tmp_path: Path) -> None:
    commit = server.add(NAME, {"config.json": CONFIG, WEIGHTS: CONTENT}, xet=(WEIGHTS,))
    server.add("someone/lost", {"lost.pth": CONTENT}, lfs=("lost.pth",))
    server.fault(500, "HEAD config.json", times=1)
    server.fault("drop", "GET lost.pth", after=10)
    home = tmp_path / "other home"
    out, err = run(server, home, TELL, NAME, "someone/lost", HF_TOKEN="hf_someones").communicate(timeout=60)
    assert err == "", "the hub's client speaks"
    (folder, done), (kind, message) = map(json.loads, out.splitlines())
    assert Path(folder) == storage(home) / "snapshots" / commit
    assert (Path(folder) / WEIGHTS).read_bytes() == CONTENT
    assert done == TOTAL
    assert server.log[0].authorization == "Bearer hf_someones"
    assert kind == "CheckpointError"
    assert "broke off" in message


def test_the_hubs_client_is_quiet_for_no_other_thread() -> None:
    (handler,) = logging.getLogger("huggingface_hub").handlers
    record = logging.makeLogRecord({"msg": "Retrying"})
    heard: list[object] = []
    assert handler.filter(record)
    with client.download_settings():
        assert not handler.filter(record)
        thread = threading.Thread(target=lambda: heard.append(handler.filter(record)))
        thread.start()
        thread.join()
    assert heard == [handler.filter(record)]
    assert heard[0]


def test_warnings_of_others_are_left_as_they_are(server: HubServer, commit: str) -> None:
    download(NAME)
    with pytest.warns(UserWarning, match="mine"):
        warnings.warn("mine", stacklevel=1)
