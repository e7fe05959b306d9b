"""A small Hugging Face hub on this machine, with a log of what it is asked and faults that a test switches on.

with HubServer() as server:
    server.add("owner/name", {"config.json": b"{}", "model.safetensors": weights}, lfs=("model.safetensors",))
    server.fault("drop", "GET model.safetensors", after=1000, times=1)
    server.use(monkeypatch, tmp_path)  # or subprocess.run(..., env=server.environment(tmp_path))
    ...
    assert [request.range for request in server.requests("GET model.safetensors")] == [None, "bytes=1000-"]
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from http.server import ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.hub_answers import Commit, Fault, Handler, Request, State, git_hash

PROXIES = tuple(name for kind in ("http", "https", "all") for name in (f"{kind}_proxy", f"{kind}_proxy".upper()))


class HubServer:
    """The hub. Nothing but 127.0.0.1 can reach it."""

    def __enter__(self) -> HubServer:
        self._state = State()
        handler = type("Handler", (Handler,), {"state": self._state})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """From now on nobody answers at the address."""
        self._state.repaired.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        for connection in self._state.connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def log(self) -> list[Request]:
        """What it was asked for, in order."""
        return self._state.log

    def requests(self, on: str = "") -> list[Request]:
        """Those in the log whose method and file contain this."""
        return [request for request in self.log if on in request.what]

    def add(
        self,
        repository: str,
        files: Mapping[str, bytes],
        lfs: tuple[str, ...] = (),
        xet: tuple[str, ...] = (),
        revision: str = "main",
        commit: str | None = None,
    ) -> str:
        """A new commit of a repository, which a branch or tag now is.

        Args:
            repository: "owner/name".
            files: every file by name.
            lfs: those that are stored apart, as large ones are: found by a redirect to another origin.
            xet: those of them that are said to be in Xet as well; nothing brings them from there.
            revision: the branch or tag.
            commit: the commit's hash, where it shall not be its own.
        """
        described = json.dumps({name: git_hash(content) for name, content in sorted(files.items())})
        commit = commit or hashlib.sha1(f"{repository} {described}".encode()).hexdigest()
        made = Commit(commit, dict(files), frozenset(lfs) | frozenset(xet), frozenset(xet))
        self._state.revisions.setdefault(repository, {}).update({revision: made, commit: made})
        for name in made.lfs:
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
        """Something that goes wrong from now on, each time or so many times.

        Args:
            kind: a status, such as 500; "gated", "no repository", "no revision", "no file", "bad token" as the hub
                says these; "html": a page; "drop": the connection breaks; "stall": nothing comes any more;
                "truncate": an answer that is whole by its own account and shorter than the file; "corrupt": another
                byte; "size": so many bytes more stated; "no length": none stated; "no range": everything again;
                "hash": the ETag in the headers.
            on: part of the method and the file of the requests that it concerns: "", "GET", "HEAD config.json", "GET
                list", "GET link to model.safetensors" (the redirect to a file in lfs), "GET model.safetensors" (the
                content).
            after: bytes of the answer's content that come before; of "size", how many more.
            times: how often; None for always.
            headers: what the answer has beside.
        """
        self._state.faults.append(Fault(kind, on, after, times, headers or {}))

    @property
    def answers(self) -> dict[str, bytes]:
        """What is answered to "list" instead, whoever asks."""
        return self._state.answers

    def repair(self) -> None:
        """Nothing goes wrong any more; where nothing comes any more, the connection breaks."""
        self._state.faults.clear()
        self._state.repaired.set()
        self._state.repaired = threading.Event()

    def use(self, patch: pytest.MonkeyPatch, home: Path, **more: object) -> None:
        """Point huggingface_hub in this process at the server and at a cache of its own, with these constants too."""
        import huggingface_hub
        from huggingface_hub import constants

        huggingface_hub.close_session()
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
            patch.setattr(constants, name, value)
        # What the library waits for between attempts.
        for module in ("huggingface_hub.file_download", "huggingface_hub.utils._http"):
            patch.setattr(f"{module}.time", SimpleNamespace(sleep=lambda _: None))
        for name in (*PROXIES, "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
            patch.delenv(name, raising=False)

    def environment(self, home: Path, **more: str) -> dict[str, str]:
        """The environment of a process whose huggingface_hub is pointed at the server and at a cache of its own."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_") and name not in PROXIES}
        return {**kept, "HF_ENDPOINT": self.url, "HF_HOME": str(home), "HF_HUB_DISABLE_TELEMETRY": "1", **more}
