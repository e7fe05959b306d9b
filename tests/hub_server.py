"""A small Hugging Face hub on this machine, with a log of requests and faults that a test switches on.

with HubServer() as server:
    server.add("owner/name", {"config.json": b"{}", "model.safetensors": weights})
    server.fault(503, "GET model.safetensors")
    server.use(monkeypatch, tmp_path)
    ...
    assert len(server.requests("GET model.safetensors")) == 1
"""

from __future__ import annotations

import hashlib
import json
import re
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import huggingface_hub
import pytest

from tests.support.waiting import LOOK_SECONDS

# Earlier releases of the client count no bytes of a snapshot, and show bars of their own.
counts_bytes = pytest.mark.skipif(huggingface_hub.__version__.startswith(("0.", "1.0", "1.1")), reason="client < 1.2")
PROXIES = tuple(name for kind in ("http", "https", "all") for name in (f"{kind}_proxy", f"{kind}_proxy".upper()))
# The refusals of the hub: the status without and with a token, and what names the reason.
REFUSALS: dict[str, tuple[int, int, dict[str, str]]] = {
    "gated": (401, 403, {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access to model is restricted."}),
    "no repository": (401, 404, {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"}),
    "no revision": (404, 404, {"X-Error-Code": "RevisionNotFound", "X-Error-Message": "Invalid rev id"}),
    "no file": (404, 404, {"X-Error-Code": "EntryNotFound", "X-Error-Message": "Entry not found"}),
}
ROUTES = (
    ("list", re.compile(r"/api/models/(?P<repository>[^/]+/[^/]+)(?:/revision/(?P<revision>[^/]+))?")),
    ("tree", re.compile(r"/api/models/(?P<repository>[^/]+/[^/]+)/tree/(?P<revision>[^/]+)")),
    ("file", re.compile(r"/(?P<repository>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<name>.+)")),
)


def close_session() -> None:
    """Forget the connections of huggingface_hub, whose releases before 1.0 call this otherwise."""
    http: Any = import_module("huggingface_hub.utils._http")

    (http.close_session if hasattr(http, "close_session") else http.reset_sessions)()


def git_hash(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class Commit(NamedTuple):
    """A commit: its hash, and its files by name."""

    id: str
    files: dict[str, bytes]


class State:
    """What a server holds, and was asked for."""

    def __init__(self) -> None:
        self.revisions: dict[str, dict[str, Commit]] = {}
        self.log: list[str] = []
        self.faults: dict[str, str | int] = {}
        self.connections: list[socket.socket] = []


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Headers and content are two writes; with Nagle's algorithm the second waits for the acknowledgement of the first.
    disable_nagle_algorithm = True
    state: State

    def setup(self) -> None:
        super().setup()
        self.state.connections.append(self.connection)

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        found = next(((kind, match.groupdict()) for kind, route in ROUTES if (match := route.fullmatch(path))), None)
        # The hub's client also sends requests that concern no repository.
        if found is None:
            return self.answer(404, {}, b"")
        kind, fields = found[0], {name: unquote(value) for name, value in found[1].items() if value}
        target = f"{self.command} {fields.get('name', kind)}"
        self.state.log.append(target)
        fault = next((fault for on, fault in self.state.faults.items() if on in target), None)
        commits = self.state.revisions.get(fields["repository"])
        commit = (commits or {}).get(fields.get("revision", "main"))
        if fault is None and commit is not None and fields.get("name", "") in ("", *commit.files):
            return self.answer_commit(kind, commit, fields)
        fault = fault or ("no repository" if commits is None else "no revision" if commit is None else "no file")
        if isinstance(fault, int):
            return self.answer(fault, {}, b"")
        anonymous, authorized, headers = REFUSALS[fault]
        return self.answer(authorized if self.headers.get("Authorization") else anonymous, headers, b"")

    def answer_commit(self, kind: str, commit: Commit, fields: Mapping[str, str]) -> None:
        if kind == "file":
            content = commit.files[fields["name"]]
            return self.answer(200, {"X-Repo-Commit": commit.id, "ETag": f'"{git_hash(content)}"'}, content)
        files = [(name, len(content), git_hash(content)) for name, content in commit.files.items()]
        siblings = [{"rfilename": name, "size": size, "blobId": blob} for name, size, blob in files]
        found: Any = {"id": fields["repository"], "sha": commit.id, "siblings": siblings}
        if kind == "tree":
            found = [{"type": "file", "path": name, "size": size, "oid": blob} for name, size, blob in files]
        return self.answer(200, {"Content-Type": "application/json"}, json.dumps(found).encode())

    def answer(self, status: int, headers: Mapping[str, str], content: bytes) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            with suppress(ConnectionError):
                self.wfile.write(content)


class HubServer:
    """The hub. It listens on 127.0.0.1 only."""

    def __enter__(self) -> HubServer:
        self._state = State()
        handler = type("StateHandler", (Handler,), {"state": self._state})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        options = {"poll_interval": LOOK_SECONDS}
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs=options, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the server and break its connections."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        for connection in self._state.connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        close_session()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def log(self) -> list[str]:
        """The requests so far, in order: the method with the file, or with the kind of request, such as "GET list"."""
        return self._state.log

    def requests(self, on: str) -> list[str]:
        """The requests that contain ``on``."""
        return [target for target in self.log if on in target]

    def add(self, repository: str, files: Mapping[str, bytes], revision: str = "main") -> str:
        """Add a commit to a repository, to which a branch or tag then points. Returns its hash.

        Args:
            repository: "owner/name".
            files: content of every file by name.
            revision: the branch or tag.
        """
        listing = json.dumps({name: git_hash(content) for name, content in sorted(files.items())})
        commit = Commit(hashlib.sha1(f"{repository} {listing}".encode()).hexdigest(), dict(files))
        self._state.revisions.setdefault(repository, {}).update({revision: commit, commit.id: commit})
        return commit.id

    def fault(self, kind: str | int, on: str = "") -> None:
        """Refuse, from now on, the requests that contain ``on``, with a status or one of :data:`REFUSALS`."""
        self._state.faults[on] = kind

    def use(self, patch: pytest.MonkeyPatch, home: Path, **more: object) -> None:
        """Point huggingface_hub in this process at the server and a cache in ``home``; ``more`` are other constants."""
        close_session()
        values: dict[str, object] = {
            "ENDPOINT": self.url,
            "HUGGINGFACE_CO_URL_TEMPLATE": self.url + "/{repo_id}/resolve/{revision}/{filename}",
            "HF_HOME": str(home),
            "HF_HUB_CACHE": str(home / "hub"),
            "HF_TOKEN_PATH": str(home / "token"),
            "HF_STORED_TOKENS_PATH": str(home / "stored_tokens"),
            "HF_HUB_OFFLINE": False,
            "HF_HUB_DISABLE_TELEMETRY": True,
        }
        for name, value in {**values, **more}.items():
            # Releases before 1.0 copy some of them.
            for module in ("constants", "file_download"):
                patch.setattr(f"huggingface_hub.{module}.{name}", value, raising=False)
        for name in (*PROXIES, "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
            patch.delenv(name, raising=False)
