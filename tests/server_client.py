"""Runs the app in this process, and sends it requests that no library would send."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.apps import close
from tests.support.waiting import HANG_SECONDS
from vitviz.ui import build_demo, serve
from vitviz.ui.app import App
from vitviz.ui.server.settings import ServerSettings

SESSION = "visitor0"


@dataclass(frozen=True)
class RunningApp:
    """A running app.

    Args:
        address: its URL.
        app: of :func:`vitviz.ui.build_demo`.
        folder: the folder of its files.
    """

    address: str
    app: App
    folder: Path

    @property
    def demo(self) -> Any:
        """What Gradio makes of its endpoints."""
        return self.app.get_blocks()

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def endpoint(self, name: str) -> Any:
        """Gradio's function of an endpoint."""
        return next(fn for fn in self.demo.fns.values() if fn.api_name == name)

    def expect_health(self) -> None:
        """The app says that it is there; whatever holds it up for ever fails."""
        assert exchange(self.port, request_head("GET", "/health", "Connection: close")).status == 200

    def files(self) -> set[Path]:
        """Every file in the folder, from which the app may delete some meanwhile."""
        return {Path(folder, name) for folder, _, names in os.walk(self.folder) for name in names}


@dataclass(frozen=True)
class Answer:
    """A response over a socket."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def detail(self) -> Any:
        return json.loads(self.body)["detail"]


@contextmanager
def running_here(
    model: Any, folder: Path, environment: Any, server_settings: ServerSettings | None = None
) -> Iterator[RunningApp]:
    """Run the app in this process.

    Args:
        model: the model with which its page opens.
        folder: the folder for its files.
        environment: a ``MonkeyPatch``.
        server_settings: settings of the server; without it, a proxy of this machine tells its visitors apart.
    """
    environment.setenv("GRADIO_TEMP_DIR", str(folder))
    app = build_demo(model, server_settings or ServerSettings(shared=False, trusted_proxies=("loopback",)))
    address = serve(app, block=False, quiet=True)
    yield RunningApp(address.replace("localhost", "127.0.0.1"), app, folder)
    close(app)


def request_head(method: str, target: str, *headers: str, host: str = "localhost") -> bytes:
    """The request line and headers of a request, byte by byte."""
    return "\r\n".join([f"{method} {target} HTTP/1.1", f"Host: {host}", *headers, "", ""]).encode("latin-1")


def exchange(port: int, *chunks: bytes) -> Answer:
    """Send a request in chunks, and read one response."""
    with socket.create_connection(("127.0.0.1", port), HANG_SECONDS) as connection:
        try:
            for chunk in chunks:
                connection.sendall(chunk)
        # The server may have answered and closed the connection before the last chunk.
        except OSError:
            pass
        return read_answer(connection)


def read_answer(connection: socket.socket) -> Answer:
    """One response: its body has the length of its headers, or else ends with its last chunk or its connection."""
    content = b""
    while b"\r\n\r\n" not in content:
        chunk = connection.recv(65536)
        if not chunk:
            raise ConnectionError(f"closed after {content!r}")
        content += chunk
    request_head, _, body = content.partition(b"\r\n\r\n")
    status, *lines = request_head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    length, is_chunked = headers.get("content-length"), headers.get("transfer-encoding") == "chunked"
    while not body.endswith(b"0\r\n\r\n") if is_chunked else length is None or len(body) < int(length):
        chunk = connection.recv(65536)
        if not chunk:
            break
        body += chunk
    return Answer(int(status.split()[1]), headers, body)


def post(port: int, target: str, body: bytes, *headers: str, kind: str = "application/json") -> Answer:
    """Post a body of a known length."""
    request = request_head("POST", target, f"Content-Type: {kind}", f"Content-Length: {len(body)}", *headers)
    return exchange(port, request, body)


def form(*files: tuple[str, bytes], boundary: str = "edge", field: str = "files") -> bytes:
    """A multipart form with files."""
    parts = [
        f'--{boundary}\r\nContent-Disposition: form-data; name="{field}"; filename="{name}"\r\n\r\n'.encode()
        + content
        + b"\r\n"
        for name, content in files
    ]
    return b"".join(parts) + f"--{boundary}--\r\n".encode()
