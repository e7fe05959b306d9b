"""A small Hugging Face hub on this machine, with a log of requests and faults that a test switches on.

with HubServer() as server:
    server.add("owner/name", {"config.json": b"{}", "model.safetensors": weights}, lfs=("model.safetensors",))
    server.fault("drop", "GET model.safetensors", after=1000, times=1)
    server.use(monkeypatch, tmp_path)
    ...
    assert [request.range for request in server.requests("GET model.safetensors")] == [None, "bytes=1000-"]
"""

from __future__ import annotations

import hashlib
import json
import select
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from http.server import ThreadingHTTPServer
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.hub_answers import Commit, Fault, Handler, Request, State, git_hash
from tests.support.waiting import LOOK_SECONDS

PROXIES = tuple(name for kind in ("http", "https", "all") for name in (f"{kind}_proxy", f"{kind}_proxy".upper()))


def close_session() -> None:
    """Forget the connections of huggingface_hub, whose releases before 1.0 call this otherwise."""
    http: Any = import_module("huggingface_hub.utils._http")

    (http.close_session if hasattr(http, "close_session") else http.reset_sessions)()


class HubServer:
    """The hub. It listens on 127.0.0.1 only."""

    def __enter__(self) -> HubServer:
        self._state = State()
        handler = type("Handler", (Handler,), {"state": self._state})
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
        self._state.repaired.set()
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
    def log(self) -> list[Request]:
        """The requests so far, in order."""
        return self._state.log

    def requests(self, on: str = "") -> list[Request]:
        """The requests whose target contains ``on``."""
        return [request for request in self.log if on in request.target]

    def add(
        self,
        repository: str,
        files: Mapping[str, bytes],
        lfs: tuple[str, ...] = (),
        xet: tuple[str, ...] = (),
        revision: str = "main",
        commit: str | None = None,
    ) -> str:
        """Add a commit to a repository, to which a branch or tag then points. Returns its hash.

        Args:
            repository: "owner/name".
            files: content of every file by name.
            lfs: names of large files, whose content is at another origin, behind a redirect.
            xet: names of large files that are also announced as stored in Xet, from where they cannot be loaded.
            revision: the branch or tag.
            commit: the hash of the commit, in place of one computed from its files.
        """
        listing = json.dumps({name: git_hash(content) for name, content in sorted(files.items())})
        commit = commit or hashlib.sha1(f"{repository} {listing}".encode()).hexdigest()
        record = Commit(commit, dict(files), frozenset(lfs) | frozenset(xet), frozenset(xet))
        self._state.revisions.setdefault(repository, {}).update({revision: record, commit: record})
        for name in record.lfs:
            self._state.large[hashlib.sha256(files[name]).hexdigest()] = files[name]
        return commit

    def fault(
        self,
        kind: str | int,
        on: str = "",
        *,
        after: int = 0,
        times: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Make matching requests fail from now on, always or a number of times.

        Args:
            kind: a status, such as 500; "gated", "no repository", "no revision", "no file", "bad token": the hub's own
                refusals; "html": a web page; "drop": the connection breaks; "stall": no more bytes arrive;
                "truncate": a complete answer that is shorter than the file; "corrupt": the last byte is wrong;
                "no length": no Content-Length; "no range": the whole file instead of the range; "headers": those in
                ``headers``.
            on: a part of the target of the requests that fail: "", "GET", "HEAD config.json", "GET list",
                "GET link to model.safetensors" (the redirect to a large file), "GET model.safetensors" (its content).
            after: bytes of content before the fault.
            times: number of failures; None for always.
            headers: further headers of the answer.
        """
        self._state.faults.append(Fault(kind, on, after, times, headers or {}))

    @property
    def answers(self) -> dict[str, bytes]:
        """Contents by kind of request, such as "list", that replace the regular answers."""
        return self._state.answers

    def repair(self) -> None:
        """Remove all faults, and break stalled connections."""
        self._state.faults.clear()
        self._state.stalled.clear()
        self._state.repaired.set()
        self._state.repaired = threading.Event()

    def _timed(self, receive: Callable[..., Any]) -> Callable[..., Any]:
        """A function that receives, for which the deadline passes as soon as the server stalls that connection."""

        def timed(connection: socket.socket, *arguments: Any) -> Any:
            if connection.gettimeout():
                while not select.select([connection], [], [], LOOK_SECONDS)[0]:
                    if connection.getsockname() in self._state.stalled:
                        raise TimeoutError("timed out")
            return receive(connection, *arguments)

        return timed

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
        for name in ("recv", "recv_into"):
            patch.setattr(socket.socket, name, self._timed(getattr(socket.socket, name)), raising=False)
        # The library does not wait between attempts.
        for module in ("huggingface_hub.file_download", "huggingface_hub.utils._http"):
            patch.setattr(f"{module}.time", SimpleNamespace(sleep=lambda _: None))
        for name in (*PROXIES, "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
            patch.delenv(name, raising=False)
