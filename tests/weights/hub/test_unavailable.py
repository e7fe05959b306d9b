"""What the hub refuses, and what is possible without it."""

from __future__ import annotations

import json
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import constants

from tests.downloads import CONTENT, NAME, SHA256, WEIGHTS, cache_folder, expect_refusal, newer_client
from tests.hub_server import HubServer
from vitviz import CheckpointError
from vitviz.weights.hub.download import download
from vitviz.weights.hub.names import is_cached

pytestmark = pytest.mark.slow

INDEX = json.dumps({"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}).encode()


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
    "a page for the content": ("html", f"GET {WEIGHTS}", ["something else than the file", "log in"]),
    "less than the content": ("truncate", f"GET {WEIGHTS}", ["something else than the file"]),
    "a connection that breaks": ("drop", f"GET {WEIGHTS}", ["cannot be reached", "the network"]),
    "silence": ("stall", "GET list", ["cannot be reached", "timed out"]),
    "silence about a file": ("stall", "HEAD config.json", ["cannot be reached", "timed out"]),
    "silence in the content": ("stall", f"GET {WEIGHTS}", ["cannot be reached", "timed out"]),
}
KNOWN = ("gated", "gated altogether", "no repository", "a bad token")


@pytest.mark.parametrize(
    ("kind", "on", "found", "token"),
    # Earlier clients go on behind the page that arrived, and only a third download is right.
    [pytest.param(*FAULTS[name], "", marks=[newer_client] * (name == "a page for the content")) for name in FAULTS]
    + [(*FAULTS[name], "hf_someones") for name in KNOWN],
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
    with expect_refusal(*found):
        download(NAME)
    assert not list(home.rglob(WEIGHTS))
    server.repair()
    assert (download(NAME) / WEIGHTS).read_bytes() == CONTENT


def test_a_revision_that_the_repository_does_not_have(server: HubServer, commit: str) -> None:
    with expect_refusal("no revision 'v2'"):
        download(NAME, revision="v2")


# The token.


@newer_client
def test_the_token_goes_to_the_hub_and_nowhere_else(
    server: HubServer, commit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_someones")
    server.fault("drop", f"GET {WEIGHTS}", after=1000, times=1)
    download(NAME)
    sent = {request.target: request.authorization for request in server.log}
    assert sent.pop(f"GET {WEIGHTS}") is None, "the content is at another origin"
    assert set(sent.values()) == {"Bearer hf_someones"}


@newer_client
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
    with expect_refusal("not completely in the cache", "(HF_HUB_CACHE)", "HF_HUB_OFFLINE", name="someone/else"):
        download("someone/else")
    assert not server.log


def test_without_a_network_an_incomplete_set_is_no_set(
    server: HubServer, commit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (download(NAME) / WEIGHTS).unlink()
    server.close()
    with expect_refusal("cannot be reached", "refused", "the cache", "(HF_HUB_CACHE)", "HF_HUB_OFFLINE"):
        download(NAME)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with expect_refusal("not completely in the cache"):
        download(NAME)


def test_a_missing_shard_is_missed(server: HubServer) -> None:
    server.add(NAME, {f"{WEIGHTS}.index.json": INDEX, "model-1.safetensors": b"1", "model-2.safetensors": b"2"})
    folder = download(NAME)
    (folder / "model-2.safetensors").unlink()
    assert not is_cached(NAME)
    server.log.clear()
    assert download(NAME) == folder
    assert is_cached(NAME)
    assert {request.target for request in server.log} == {"GET list", "HEAD model-2.safetensors"}


def test_a_link_to_nothing_is_no_file(server: HubServer, commit: str, home: Path) -> None:
    folder = download(NAME)
    (cache_folder(home) / "blobs" / SHA256).unlink()
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
    theirs = {Path(huggingface_hub.hf_hub_download(NAME, name)).parent for name in ("config.json", WEIGHTS)}
    assert is_cached(NAME)
    server.log.clear()
    assert {download(NAME)} == theirs
    assert [request.target for request in server.log] == ["GET list"]
