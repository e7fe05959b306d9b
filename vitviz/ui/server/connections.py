"""Connections to the app: limits on how many there are, so that it never runs out of file descriptors."""

from __future__ import annotations

import asyncio
import errno
import sys
import time
from contextlib import suppress
from typing import Any

from gradio.http_server import Server

from vitviz.ui.server.hosts import HostRules, visitor_key
from vitviz.ui.server.log import LOGGER
from vitviz.ui.server.quota import Quota, RequestError

# An idle connection stays open longer than with proxies (Caddy: two minutes), which would otherwise send a request into
# a connection that has just been closed.
KEEP_ALIVE_SECONDS = 150
# For the answers under way when the server ends.
SHUTDOWN_SECONDS = 2
# Of one address: sixty pages, in browsers that open six connections each, and some more.
MAX_PER_VISITOR = 400
# More than anybody needs; some systems state a hard limit of billions.
MAX_DESCRIPTORS = 2**16
NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)
# A refusal is logged once in this time.
LOG_SECONDS = 60.0
REASON = "too many connections are open: close some first"
REFUSAL = (
    b"HTTP/1.1 429 Too Many Requests\r\nContent-Type: application/json\r\nConnection: close\r\n"
    b'Content-Length: %d\r\n\r\n{"detail": "%s"}' % (len(REASON) + 14, REASON.encode())
)


class Connections:
    """Counts the open connections of each visitor. For one event loop.

    Args:
        rules: trusted proxies, who connect for many visitors, have no limit of their own.
        most: of all visitors together.
    """

    def __init__(self, rules: HostRules, most: int) -> None:
        self._rules = rules
        # Where there are few, no visitor gets most of them.
        self._quota = Quota(min(MAX_PER_VISITOR, most // 3), REASON, most)
        self._logged_at = -LOG_SECONDS

    def open(self, address: str) -> str | None:
        """Count a connection; returns its visitor, for :meth:`close`, or None if there are too many."""
        visitor = visitor_key(address)
        try:
            self._quota.take(visitor, is_many=address in self._rules.proxies)
        except RequestError:
            self.log_refusal()
            return None
        return visitor

    def log_refusal(self) -> None:
        """Log that connections are refused, unless a line about it was logged just before."""
        if time.monotonic() >= self._logged_at + LOG_SECONDS:
            self._logged_at = time.monotonic()
            LOGGER.warning("connections are refused: %d are open", self._quota.total)

    def close(self, visitor: str) -> None:
        """Count a connection of a visitor no longer."""
        self._quota.give_back(visitor)


class CountedConnection:
    """Mixin for uvicorn's protocols that refuses a connection which is one too many."""

    by_visitor: Connections
    visitor: str | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)  # type: ignore[misc]
        client: Any = self.client  # type: ignore[attr-defined]
        self.visitor = self.by_visitor.open(client[0] if client else "")
        if self.visitor is None:
            transport.write(REFUSAL)
            transport.close()
            return
        # uvicorn itself waits for ever for the first request of a connection.
        protocol: Any = self
        protocol.timeout_keep_alive_task = protocol.loop.call_later(
            protocol.timeout_keep_alive, protocol.timeout_keep_alive_handler
        )

    def connection_lost(self, exc: Exception | None) -> None:
        if self.visitor is not None:
            self.by_visitor.close(self.visitor)
        super().connection_lost(exc)  # type: ignore[misc]

    def _unsupported_upgrade_warning(self) -> None:
        """Log nothing: uvicorn writes two lines for every request with an Upgrade header."""


def guard_connections(server: Server, app: Any, rules: HostRules) -> None:
    """Apply :class:`CountedConnection` to the new connections of a running server.

    Args:
        server: Gradio's.
        app: served directly. uvicorn's own middleware would believe the forwarded headers of any program on this
            machine; :mod:`vitviz.ui.server.request_filter` checks them.
        rules: the trusted proxies.
    """
    # A request may need a file beside its connection.
    connections = Connections(rules, raised_descriptors() // 2)
    config = server.config
    config.timeout_keep_alive = KEEP_ALIVE_SECONDS
    # A visitor who does not read an answer would keep a server that ends waiting for ever.
    config.timeout_graceful_shutdown = SHUTDOWN_SECONDS
    base: Any = config.http_protocol_class
    config.http_protocol_class = type("CountedProtocol", (CountedConnection, base), {"by_visitor": connections})
    config.ws_protocol_class = None
    config.loaded_app = app

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        # asyncio accepts two thousand waiting connections before the first is counted, and prints an error for each
        # that has no descriptor.
        if getattr(context.get("exception"), "errno", None) in NO_DESCRIPTOR:
            connections.log_refusal()
        else:
            loop.default_exception_handler(context)

    server.servers[0].get_loop().set_exception_handler(handle)


def raised_descriptors() -> int:
    """The number of descriptors that this process may have, raised as far as the system allows."""
    if sys.platform == "win32":
        return MAX_DESCRIPTORS
    import resource

    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    soft, wanted = (
        MAX_DESCRIPTORS if limit == resource.RLIM_INFINITY else min(limit, MAX_DESCRIPTORS)
        for limit in resource.getrlimit(resource.RLIMIT_NOFILE)
    )
    # macOS may allow fewer than its limit says.
    with suppress(ValueError, OSError):
        if soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            return wanted
    return soft
