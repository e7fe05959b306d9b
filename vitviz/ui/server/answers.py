"""Answers that wait to be read: how many a visitor may have, and for how long they are kept.

Gradio computes whatever is asked for, and keeps each answer until somebody reads it.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import gradio as gr

from vitviz.ui.server.bodies import RequestError
from vitviz.ui.server.sessions import Sessions

# Sessions of one visitor whose answers nobody reads: calls of programs, and pages that are gone.
MAX_UNREAD = 32
# Events of one visitor that wait for their turn.
MAX_EVENTS = 64
# For how long an answer waits for somebody who reads it.
ANSWER_SECONDS = 60.0
# How soon it is looked again whether a call has ended.
AGAIN_SECONDS = 0.5


class Answers:
    """Knows whose answers are read, refuses visitors who have too many, and forgets the others. For one event loop.

    Args:
        blocks: the app.
        sessions: of its pages and calls.
    """

    def __init__(self, blocks: gr.Blocks, sessions: Sessions) -> None:
        self._blocks, self._sessions = blocks, sessions
        # Visitors by the sessions whose answers nobody reads, though there are some or will be.
        self._unread: dict[str, str] = {}
        # Those whose answers were all read, the latest last: a page may be about to open its next stream.
        self._read: dict[str, str] = {}
        # When a session of either kind is forgotten.
        self._timers: dict[str, asyncio.TimerHandle] = {}
        # How many read the answers of a session now.
        self._readers: Counter[str] = Counter()
        # Requests that Gradio has not taken yet, by visitor.
        self._arriving: Counter[str] = Counter()
        # The session of a call, where its client gave it one.
        self._session_of: dict[str, str] = {}

    @contextmanager
    def asking(self, visitor: str, session: str | None) -> Iterator[Callable[[bytes], None]]:
        """While Gradio takes a request for something to compute.

        Args:
            visitor: who asks.
            session: of the page or the client; a call without one gets the name of its event.

        Yields:
            What has to be called with the content of Gradio's answer.

        Raises:
            RequestError: the visitor has asked for too much already.
        """
        self._check(visitor, session)
        was_kept = session is not None and self._release(session)
        self._arriving[visitor] += 1
        try:
            yield partial(self._note, visitor, session)
        finally:
            self._arriving[visitor] -= 1
            self._arriving += Counter()
            if was_kept and session is not None:
                self._keep(session, visitor)

    def _check(self, visitor: str, session: str | None) -> None:
        arriving = self._arriving[visitor]
        if session not in self._unread and arriving + Counter(self._unread.values())[visitor] >= MAX_UNREAD:
            raise RequestError(429, f"{MAX_UNREAD} answers wait for you: read them first")
        queues = self._queue.event_queue_per_concurrency_id.values()
        owners = Counter(self._visitor(event.session_hash) for each in queues for event in each.queue)
        if arriving + owners[visitor] >= MAX_EVENTS:
            raise RequestError(429, f"{MAX_EVENTS} things that you asked for wait for their turn: wait for them first")

    def _visitor(self, session: str) -> str | None:
        return self._unread.get(session) or self._sessions.owner(session)

    def _note(self, visitor: str, session: str | None, content: bytes) -> None:
        """Take down what Gradio has taken; a refusal names no event."""
        with suppress(ValueError, TypeError, KeyError):
            event = str(json.loads(content)["event_id"])
            if session is not None:
                self._session_of[event] = session
            self._keep(session or event, visitor)

    @contextmanager
    def reading(self, visitor: str, *, session: str = "", event: str = "") -> Iterator[None]:
        """While somebody reads the answers of a session, or that of a call.

        Args:
            visitor: who reads.
            session, event: one of them.
        """
        key = session or self._session_of.get(event, event)
        self._release(key)
        self._readers[key] += 1
        try:
            yield
        finally:
            self._readers[key] -= 1
            self._readers += Counter()
            if key == event:
                self._end_call(event, visitor)
            else:
                self._keep(key, visitor)

    def _end_call(self, event: str, visitor: str) -> None:
        """A call of its own has one answer: forget it once that is read."""
        if self._is_under_way(event):
            # Gradio tells the answer a moment before it lets the event go; or the reader left before the answer.
            self._keep(event, visitor)
            self._timers[event].cancel()
            again = partial(self._end_call, event, visitor)
            self._timers[event] = asyncio.get_running_loop().call_later(AGAIN_SECONDS, again)
        elif self._is_empty(event):
            self._forget(event)
        else:
            self._keep(event, visitor)

    def _keep(self, session: str, visitor: str) -> None:
        """Until somebody reads it, or its time is over."""
        self._release(session)
        if self._readers[session]:
            return
        if self._is_under_way(session) or not self._is_empty(session):
            self._unread[session] = visitor
        else:
            self._read[session] = visitor
            mine = [name for name, owner in self._read.items() if owner == visitor]
            for name in mine[:-MAX_UNREAD]:
                self._forget(name)
        self._timers[session] = asyncio.get_running_loop().call_later(ANSWER_SECONDS, self._end, session)

    def _release(self, session: str) -> bool:
        """Take a session's time limit away; whether it had one."""
        self._unread.pop(session, None)
        self._read.pop(session, None)
        timer = self._timers.pop(session, None)
        if timer is not None:
            timer.cancel()
        return timer is not None

    def _end(self, session: str) -> None:
        if self._is_under_way(session):
            self._timers[session] = asyncio.get_running_loop().call_later(ANSWER_SECONDS, self._end, session)
        else:
            self._forget(session)

    def _forget(self, session: str) -> None:
        self._release(session)
        self._queue.pending_messages_per_session.pop(session, None)
        self._queue.pending_event_ids_session.pop(session, None)
        for event in [event for event, own in self._session_of.items() if own == session]:
            del self._session_of[event]
        # Gradio keeps the session of each call, with a copy of the page's settings.
        self._sessions.forget_call(session)

    def _is_under_way(self, session: str) -> bool:
        events = self._queue.pending_event_ids_session.get(session, ())
        return any(event in self._queue.event_ids_to_events for event in events)

    def _is_empty(self, session: str) -> bool:
        messages = self._queue.pending_messages_per_session.get(session)
        return messages is None or messages.empty()

    @property
    def _queue(self) -> Any:
        return self._blocks._queue
