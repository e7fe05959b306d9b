"""Connections to the app: how long one may be silent, and as many file descriptors as the system allows."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from gradio.http_server import Server

# An idle connection stays open longer than with proxies (Caddy: two minutes), which would otherwise send a request into
# a connection that has just been closed.
KEEP_ALIVE_SECONDS = 150
# Until the first request of a connection.
FIRST_REQUEST_SECONDS = 10
# For the answers under way when the server ends.
SHUTDOWN_SECONDS = 2
# More than anybody needs; some systems state a hard limit of billions.
MAX_DESCRIPTORS = 2**16


class ImpatientConnection:
    """Mixin for uvicorn's protocols that closes a connection on which nothing is asked."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)  # type: ignore[misc]
        # uvicorn itself waits for ever for the first request of a connection.
        protocol: Any = self
        protocol.timeout_keep_alive_task = protocol.loop.call_later(
            FIRST_REQUEST_SECONDS, protocol.timeout_keep_alive_handler
        )

    def _unsupported_upgrade_warning(self) -> None:
        """Log nothing: uvicorn writes two lines for every request with an Upgrade header."""


def set_connections(server: Server, app: Any) -> None:
    """Apply the time limits to the new connections of a running server.

    Args:
        server: Gradio's.
        app: served directly. uvicorn's own middleware would believe the forwarded headers of any program on this
            machine; :mod:`vitviz.ui.server.request_filter` checks them.
    """
    raise_descriptors()
    config = server.config
    config.timeout_keep_alive = KEEP_ALIVE_SECONDS
    # A visitor who does not read an answer would keep a server that ends waiting for ever.
    config.timeout_graceful_shutdown = SHUTDOWN_SECONDS
    base: Any = config.http_protocol_class
    config.http_protocol_class = type("ImpatientProtocol", (ImpatientConnection, base), {})
    config.ws_protocol_class = None
    config.loaded_app = app


def raise_descriptors() -> None:
    """Let this process have as many descriptors as the system allows."""
    # Windows has no such limit, and macOS may allow fewer than its limit says.
    with suppress(ImportError, ValueError, OSError):
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
