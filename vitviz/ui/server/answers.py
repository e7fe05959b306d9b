"""Limits on unread answers: how many a visitor may have, and how long they are kept.

Gradio itself computes every request and keeps each answer until somebody reads it.
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
from vitviz.ui.server.fair_queue import visitor_of

# Sessions of one visitor with unread answers.
MAX_UNREAD = 32
# Queued events of one visitor.
MAX_EVENTS = 64
# An unread answer is kept this long.
ANSWER_SECONDS = 60.0
# The interval at which a call is checked for its end.
POLL_SECONDS = 0.5


class Answers:
    """Tracks who reads their answers, refuses visitors with too many, and drops the rest. For one event loop.

    Args:
        blocks: the app.
    """

    def __init__(self, blocks: gr.Blocks) -> None:
        self._blocks = blocks
        # Visitors by sessions that have, or will have, answers and no reader.
        self._unread: dict[str, str] = {}
        # Visitors by sessions whose answers are all read, the latest last: a client may open its next stream.
        self._read: dict[str, str] = {}
        # The timers after which a session of either kind is dropped.
        self._timers: dict[str, asyncio.TimerHandle] = {}
        # Open streams by session.
        self._readers: Counter[str] = Counter()
        # Requests on the way to Gradio, by visitor.
        self._arriving: Counter[str] = Counter()
        # Sessions of calls by event, if the client sent one.
        self._session_of: dict[str, str] = {}

    @contextmanager
    def asking(self, visitor: str, session: str | None) -> Iterator[Callable[[bytes], None]]:
        """The time in which Gradio accepts a request.

        Args:
            visitor: who sends it.
            session: of the page or the client; the id of the event stands for a missing one.

        Yields:
            A function to be called with the body of Gradio's response.

        Raises:
            RequestError: the visitor has too many requests.
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
            raise RequestError(429, f"{MAX_UNREAD} unread replies: fetch them first")
        queues = self._queue.event_queue_per_concurrency_id.values()
        owners = Counter(visitor_of(event) for waiting in queues for event in waiting.queue)
        if arriving + owners[visitor] >= MAX_EVENTS:
            raise RequestError(429, f"{MAX_EVENTS} of your requests are queued: wait for them")

    def _note(self, visitor: str, session: str | None, content: bytes) -> None:
        """Keep the event that Gradio accepted; the body of a refusal has none."""
        with suppress(ValueError, TypeError, KeyError):
            event = str(json.loads(content)["event_id"])
            if session is not None:
                self._session_of[event] = session
            self._keep(session or event, visitor)

    @contextmanager
    def reading(self, visitor: str, *, session: str = "", event: str = "") -> Iterator[None]:
        """The time in which somebody reads the answers of a session, or the answer of a call.

        Args:
            visitor: who reads.
            session, event: one of the two.
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
        """Drop a call once its only answer is read."""
        if self._is_running(event):
            # Gradio sends the answer a moment before it drops the event; or the reader left early.
            self._keep(event, visitor)
            self._timers[event].cancel()
            retry = partial(self._end_call, event, visitor)
            self._timers[event] = asyncio.get_running_loop().call_later(POLL_SECONDS, retry)
        elif self._is_empty(event):
            self._forget(event)
        else:
            self._keep(event, visitor)

    def _keep(self, session: str, visitor: str) -> None:
        """Keep a session until somebody reads it or its time is over."""
        self._release(session)
        if self._readers[session]:
            return
        if self._is_running(session) or not self._is_empty(session):
            self._unread[session] = visitor
        else:
            self._read[session] = visitor
            sessions = [name for name, owner in self._read.items() if owner == visitor]
            for name in sessions[:-MAX_UNREAD]:
                self._forget(name)
        self._timers[session] = asyncio.get_running_loop().call_later(ANSWER_SECONDS, self._end, session)

    def _release(self, session: str) -> bool:
        """Cancel the timer of a session; returns whether it had one."""
        self._unread.pop(session, None)
        self._read.pop(session, None)
        timer = self._timers.pop(session, None)
        if timer is not None:
            timer.cancel()
        return timer is not None

    def _end(self, session: str) -> None:
        if self._is_running(session):
            self._timers[session] = asyncio.get_running_loop().call_later(ANSWER_SECONDS, self._end, session)
        else:
            self._forget(session)

    def _forget(self, session: str) -> None:
        self._release(session)
        self._queue.pending_messages_per_session.pop(session, None)
        self._queue.pending_event_ids_session.pop(session, None)
        for event in [event for event, owner in self._session_of.items() if owner == session]:
            del self._session_of[event]
        # Gradio keeps a copy of the page's settings in the session of each call.
        holder = self._blocks.app.state_holder
        holder.session_data.pop(session, None)
        holder.time_last_used.pop(session, None)

    def _is_running(self, session: str) -> bool:
        events = self._queue.pending_event_ids_session.get(session, ())
        return any(event in self._queue.event_ids_to_events for event in events)

    def _is_empty(self, session: str) -> bool:
        messages = self._queue.pending_messages_per_session.get(session)
        return messages is None or messages.empty()

    @property
    def _queue(self) -> Any:
        return self._blocks._queue
