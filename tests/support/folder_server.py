"""A server on this machine that only sends the files of a folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread


class FileHandler(SimpleHTTPRequestHandler):
    """Sends files, and logs nothing."""

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@contextmanager
def served_folder(folder: Path, handler: type[FileHandler] = FileHandler) -> Iterator[str]:
    """The address of a folder, with a slash at its end."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=str(folder))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
