"""Connections to the app: how long one may be silent, and as many file descriptors as the system allows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from gradio.http_server import Server

from vitviz.system.strangers import FIRST_REQUEST_SECONDS, READ_BYTES, TAKEN_SECONDS

# An idle connection stays open longer than with proxies (Caddy: two minutes), which would otherwise send a request into
# a connection that has just been closed.
KEEP_ALIVE_SECONDS = 150
# For the answers under way when the server ends.
SHUTDOWN_SECONDS = 2
# More than anybody needs; some systems state a hard limit of billions.
MAX_DESCRIPTORS = 2**16


class ImpatientConnection:
    """Mixin for uvicorn's protocols that ends a connection on which nothing is asked, or no answer taken.

    uvicorn itself waits for ever for the first request of a connection, for the head of each, and for its reader.
    """

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)  # type: ignore[misc]
        # An answer goes on when all before is taken, so that it keeps the memory of one part.
        transport.set_write_buffer_limits(0)
        # Others wait for all that is read at once; by itself, asyncio reads 256 KiB.
        transport.max_size = READ_BYTES
        self._watch(None)

    def _watch(self, before: object) -> None:
        """End the connection if it waits for the same as the last time."""
        own: Any = self
        state, seconds, unsent = object(), FIRST_REQUEST_SECONDS, own.transport.get_write_buffer_size()
        if unsent:
            state, seconds = ("a reader", unsent), TAKEN_SECONDS
        elif own.timeout_keep_alive_task is None and (own.cycle is None or own.cycle.response_complete):
            state = "a request", own.cycle
        if state == before:
            own.transport.abort()
        elif unsent or not own.transport.is_closing():
            own.loop.call_later(seconds, own._watch, state)

    def _unsupported_upgrade_warning(self) -> None:
        """Log nothing: uvicorn writes two lines for every request with an Upgrade header."""


def set_connections(config: Any) -> None:
    """Apply the limits to the configuration of a server that does not run yet."""
    config.timeout_keep_alive = KEEP_ALIVE_SECONDS
    # A visitor who does not read an answer would keep a server that ends waiting for ever.
    config.timeout_graceful_shutdown = SHUTDOWN_SECONDS
    # It would believe the forwarded headers of any program here; :mod:`vitviz.ui.server.request_filter` checks them.
    # Transports of uvloop, which uvicorn takes where it is installed, do not say how much they read.
    config.proxy_headers, config.ws, config.loop = False, "none", "asyncio"
    config.load()
    config.http_protocol_class = type("ImpatientProtocol", (ImpatientConnection, config.http_protocol_class), {})


@contextmanager
def impatient_servers() -> Iterator[None]:
    """A context in which Gradio starts its server with as many descriptors and the limits, before it listens."""
    raise_descriptors()
    start = Server.run_in_thread

    def run_in_thread(server: Server) -> None:
        set_connections(server.config)
        start(server)

    Server.run_in_thread = run_in_thread  # type: ignore[method-assign]
    try:
        yield
    finally:
        Server.run_in_thread = start  # type: ignore[method-assign]


def raise_descriptors() -> None:
    """Let this process have as many descriptors as the system allows."""
    # Windows has no such limit, and macOS may allow fewer than its limit says.
    with suppress(ImportError, ValueError, OSError):
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
