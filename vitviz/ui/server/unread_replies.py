"""Limits on answers to programs that nobody reads: how many a visitor may have, and how long they are kept.

Gradio itself computes every request and keeps each answer until somebody reads it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from urllib.parse import urlencode

from vitviz.ui.server.bodies import App, Message, RequestError, Scope
from vitviz.ui.server.routes import EVENT_STREAM

# Calls of one visitor whose answers nobody reads, and how long these are kept.
MAX_UNREAD = 32
REPLY_SECONDS = 600.0


@dataclass
class Unread:
    """Answers, ready or not, that nobody reads.

    Args:
        visitor: whose they are.
        count: how many.
        drop: drops them later.
    """

    visitor: str
    count: int
    drop: asyncio.Task[None]


class UnreadReplies:
    """Tracks who reads their answers, refuses visitors with too many, and drops the rest. For one event loop.

    Args:
        app: Gradio.
    """

    def __init__(self, app: App) -> None:
        self._app = app
        # By the session of a client, or the event of a call by plain HTTP.
        self._unread: dict[str, Unread] = {}
        # Open streams by the same.
        self._readers: Counter[str] = Counter()
        # Calls on the way to Gradio, by visitor.
        self._arriving: Counter[str] = Counter()

    @contextmanager
    def asking(self, visitor: str) -> Iterator[None]:
        """The time in which Gradio accepts a call.

        Raises:
            RequestError: the visitor has too many unread answers.
        """
        count = sum(unread.count for unread in self._unread.values() if unread.visitor == visitor)
        if self._arriving[visitor] + count >= MAX_UNREAD:
            raise RequestError(429, f"{MAX_UNREAD} unread replies: fetch them first")
        self._arriving[visitor] += 1
        try:
            yield
        finally:
            self._arriving[visitor] -= 1
            self._arriving += Counter()

    def expect(self, key: str, visitor: str, scope: Scope) -> None:
        """Count an answer that will come, unless somebody reads already.

        Args:
            key: the session of a client, or the event of a call.
            visitor: whose it is.
            scope: of the call.
        """
        if not self._readers[key]:
            unread = self._unread.pop(key, None)
            if unread is not None:
                unread.drop.cancel()
            count = 1 if unread is None else unread.count + 1
            self._unread[key] = Unread(visitor, count, asyncio.create_task(self._drop(key, scope)))

    @contextmanager
    def reading(self, key: str) -> Iterator[None]:
        """The time in which somebody reads answers. When they leave, Gradio drops what they did not read."""
        unread = self._unread.pop(key, None)
        if unread is not None:
            unread.drop.cancel()
        self._readers[key] += 1
        try:
            yield
        finally:
            self._readers[key] -= 1
            self._readers += Counter()

    async def _drop(self, key: str, scope: Scope) -> None:
        """Read answers, once nobody else has done so for long."""
        await asyncio.sleep(REPLY_SECONDS)
        query = urlencode({"session_hash": key}).encode()
        scope = {**scope, "method": "GET", "path": EVENT_STREAM, "query_string": query}

        async def receive() -> Message:
            return await asyncio.Future()

        async def send(_: Message) -> None:
            pass

        # Gradio raises if they are no longer there.
        with suppress(Exception):
            await asyncio.wait_for(self._app(scope, receive, send), REPLY_SECONDS)
        del self._unread[key]
