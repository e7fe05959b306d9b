"""Connections that end when nothing comes of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from gradio.http_server import Server

from vitviz.ui.server.bodies import App, Message, Receive, Scope, Send

# For how long a connection is kept open for the next request: longer than proxies keep theirs (Caddy: two minutes),
# which would otherwise send requests into one that has just been closed.
KEEP_ALIVE_SECONDS = 150
# In which the head of a request has to come, from its first byte; and the first byte from the connection.
HEAD_SECONDS = 20.0
# In which a client has to take a part of an answer.
SEND_SECONDS = 60.0
SEND_BYTES_PER_SECOND = 2048
# In the scope of a request: closes its connection.
ABORT = "vitviz.abort"


class TimedConnection:
    """Mixed into uvicorn's protocols: closes a connection whose request does not come, or whose answer nobody takes."""

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
        # A new request has begun, or one is being read or answered still.
        if self.cycle is not cycle or (cycle is not None and not cycle.response_complete):  # type: ignore[attr-defined]
            self._head_came()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_came()
        super().connection_lost(exc)  # type: ignore[misc]

    def _unsupported_upgrade_warning(self) -> None:
        """Log nothing: uvicorn would write two lines for every request with such a header."""

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
    """Sends to a client that takes what is sent; the connection of another is closed."""
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
    """Time the connections of a server that runs; each new one asks its configuration.

    Args:
        server: Gradio's.
        app: what it serves. The layer that uvicorn puts before it believes what any program on this machine says of
            where a request comes from; the door knows better.
    """
    config = server.config
    config.timeout_keep_alive = KEEP_ALIVE_SECONDS
    base: Any = config.http_protocol_class
    config.http_protocol_class = type("TimedProtocol", (TimedConnection, base), {})
    config.ws_protocol_class = None
    config.loaded_app = app
