"""Limits on answers to programs that nobody reads: how many a visitor may have, and how long they are kept.

Gradio itself computes every request, keeps each answer until somebody reads it, and of every session a little for ever.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from vitviz.system.strangers import MAX_UNREAD, REPLY_SECONDS
from vitviz.ui.server.rule import RequestError

# Calls that Gradio has not accepted yet: no session of a client.
ASKING = ""


class UnreadReplies:
    """Tracks who reads their answers, refuses visitors with too many, and drops the rest. For one event loop.

    Args:
        queue: Gradio's.
    """

    def __init__(self, queue: Any) -> None:
        self._queue = queue
        # By itself, it would let go of the oldest of 2,000 sessions, whoever's that is.
        queue.pending_messages_per_session = {}
        # Whose answers nobody reads, by the session of a client; a call by plain HTTP is a session of its own.
        # No row of what is kept: Gradio has the answers, for a while, and a program would wait for one that went.
        self._unread: defaultdict[str, list[str]] = defaultdict(list)
        # Open streams by the same.
        self._readers: Counter[str] = Counter()

    @contextmanager
    def asking(self, visitor: str) -> Iterator[Callable[[str, str], None]]:
        """The time in which Gradio accepts a call.

        Yields:
            A function for the session and the event of an accepted call, whose answer counts until somebody reads it.

        Raises:
            RequestError: the visitor has too many unread answers.
        """
        if sum(visitors.count(visitor) for visitors in self._unread.values()) >= MAX_UNREAD:
            raise RequestError(429, f"{MAX_UNREAD} unread replies: fetch them first")

        def expect(session: str, event: str) -> None:
            if not self._readers[session]:
                self._unread[session].append(visitor)
            asyncio.get_running_loop().call_later(REPLY_SECONDS, self._drop, session, event)

        self._unread[ASKING].append(visitor)
        try:
            yield expect
        finally:
            self._unread[ASKING].remove(visitor)

    @contextmanager
    def reading(self, session: str) -> Iterator[None]:
        """The time in which somebody reads answers."""
        self._unread.pop(session, None)
        self._readers[session] += 1
        try:
            yield
        finally:
            self._readers[session] -= 1
            self._readers += Counter()

    def _drop(self, session: str, event: str) -> None:
        """Let Gradio forget an answer that is read, or that nobody reads."""
        events = self._queue.pending_event_ids_session.get(session, set())
        events.discard(event)
        if self._readers[session]:
            asyncio.get_running_loop().call_later(REPLY_SECONDS, self._drop, session, event)
        elif not events:
            self._unread.pop(session, None)
            self._queue.pending_event_ids_session.pop(session, None)
            self._queue.pending_messages_per_session.pop(session, None)
