"""Closing connections on which the client neither sends nor receives."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from gradio.http_server import Server

from vitviz.ui.server.bodies import App, Message, Receive, Scope, Send

# An idle connection stays open longer than with proxies (Caddy: two minutes), which would otherwise send a request into
# a connection that has just been closed.
KEEP_ALIVE_SECONDS = 150
# From the connection to the first byte, and from the first byte to the end of the request's head.
HEAD_SECONDS = 20.0
# The time in which a client takes a part of a response: these seconds, and more at this rate.
SEND_SECONDS = 60.0
SEND_BYTES_PER_SECOND = 2048
# The key, in a request's scope, of the function that closes the connection.
ABORT = "vitviz.abort"


class TimedConnection:
    """Mixin for uvicorn's protocols that closes a connection when the head of a request or the client's reads stall."""

    head_seconds = HEAD_SECONDS
    send_seconds = SEND_SECONDS

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._head_timer: asyncio.TimerHandle | None = None
        app: App = self.app
        self.app: App = self._timed(app)

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)  # type: ignore[misc]
        self._await_head()

    def data_received(self, data: bytes) -> None:
        cycle: Any = self.cycle  # type: ignore[attr-defined]
        if self._head_timer is None and (cycle is None or cycle.response_complete):
            self._await_head()
        super().data_received(data)  # type: ignore[misc]
        # A new request has begun, or the last one is still being read or answered.
        if self.cycle is not cycle or (cycle is not None and not cycle.response_complete):  # type: ignore[attr-defined]
            self._head_came()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_came()
        super().connection_lost(exc)  # type: ignore[misc]

    def _unsupported_upgrade_warning(self) -> None:
        """Log nothing: uvicorn writes two lines for every request with an Upgrade header."""

    def _await_head(self) -> None:
        loop: asyncio.AbstractEventLoop = self.loop  # type: ignore[attr-defined]
        self._head_timer = loop.call_later(self.head_seconds, self._abort)

    def _head_came(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _abort(self) -> None:
        self._head_timer = None
        transport: Any = self.transport  # type: ignore[attr-defined]
        if not transport.is_closing():
            transport.abort()

    def _timed(self, app: App) -> App:
        async def serve(scope: Scope, receive: Receive, send: Send) -> None:
            await app({**scope, ABORT: self._abort}, receive, timed_send(send, self._abort, self.send_seconds))

        return serve


def timed_send(send: Send, abort: Callable[[], None], seconds: float) -> Send:
    """A send function that aborts the connection when the client does not take the data in time."""
    waiting_bytes = 0

    async def send_in_time(message: Message) -> None:
        nonlocal waiting_bytes
        waiting_bytes += len(message.get("body", b""))
        try:
            await asyncio.wait_for(send(message), seconds + waiting_bytes / SEND_BYTES_PER_SECOND)
        except (TimeoutError, asyncio.TimeoutError):
            abort()
            return
        waiting_bytes = len(message.get("body", b""))

    return send_in_time


def guard_connections(server: Server, app: Any) -> None:
    """Apply :class:`TimedConnection` to the new connections of a running server.

    Args:
        server: Gradio's.
        app: served directly. uvicorn's own middleware would believe the forwarded headers of any program on this
            machine; :mod:`vitviz.ui.server.request_filter` checks them.
    """
    config = server.config
    config.timeout_keep_alive = KEEP_ALIVE_SECONDS
    base: Any = config.http_protocol_class
    config.http_protocol_class = type("TimedProtocol", (TimedConnection, base), {})
    config.ws_protocol_class = None
    config.loaded_app = app
