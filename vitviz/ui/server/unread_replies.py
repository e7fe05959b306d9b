"""Limits on answers to programs that nobody reads: how many a visitor may have, and how long they are kept.

Gradio itself computes every request and keeps each answer until somebody reads it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from urllib.parse import urlencode

from vitviz.system.strangers import MAX_UNREAD, REPLY_SECONDS
from vitviz.ui.server.bodies import App, Message, Scope
from vitviz.ui.server.routes import EVENT_STREAM
from vitviz.ui.server.rule import RequestError


class UnreadReplies:
    """Tracks who reads their answers, refuses visitors with too many, and drops the rest. For one event loop.

    Args:
        app: Gradio.
    """

    def __init__(self, app: App) -> None:
        self._app = app
        self.counts: Counter[str] = Counter()
        # What ends once somebody reads, by the session of a client, or the event of a call by plain HTTP.
        self._unread: dict[str, ExitStack] = {}
        # Open streams by the same.
        self._readers: Counter[str] = Counter()

    @contextmanager
    def asking(self, visitor: str, scope: Scope) -> Iterator[Callable[[str], None]]:
        """The time in which Gradio accepts a call.

        Yields:
            A function for the key of an accepted call, whose answer counts until somebody reads it.

        Raises:
            RequestError: the visitor has too many unread answers.
        """
        if self.counts[visitor] >= MAX_UNREAD:
            raise RequestError(429, f"{MAX_UNREAD} unread replies: fetch them first")
        self.counts[visitor] += 1
        with ExitStack() as stack:
            stack.callback(self.counts.subtract, [visitor])

            def expect(key: str) -> None:
                if not self._readers[key]:
                    unread = self._unread.setdefault(key, ExitStack())
                    unread.push(stack.pop_all())
                    unread.callback(asyncio.create_task(self._drop(key, scope)).cancel)

            yield expect

    @contextmanager
    def reading(self, key: str) -> Iterator[None]:
        """The time in which somebody reads answers. When they leave, Gradio drops what they did not read."""
        self._unread.pop(key, ExitStack()).close()
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
        self._unread.pop(key, ExitStack()).close()
