"""Calls of programs whose answers wait: how many a visitor may have, and for how long they are kept.

Gradio computes every call at once and keeps the answer until somebody fetches it.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from contextlib import suppress
from typing import Any

import gradio as gr

from vitviz.ui.server.bodies import RequestError
from vitviz.ui.server.sessions import Sessions

# Calls of one visitor that are computed, or whose answers wait.
MAX_CALLS = 32
# Events of one visitor's pages that wait for their turn.
MAX_EVENTS = 64
# For how long an answer waits.
ANSWER_SECONDS = 60.0


class Answers:
    """Counts calls by visitor, and forgets answers that nobody fetches. For one event loop.

    Args:
        blocks: the app.
        sessions: of its pages and calls.
    """

    def __init__(self, blocks: gr.Blocks, sessions: Sessions) -> None:
        self._blocks, self._sessions = blocks, sessions
        # The visitor of each call, by its event.
        self._waiting: dict[str, str] = {}

    def check_calls(self, visitor: str) -> None:
        """Refuse another call of a visitor who has too many.

        Raises:
            RequestError: there is one more than :data:`MAX_CALLS`.
        """
        if Counter(self._waiting.values())[visitor] >= MAX_CALLS:
            raise RequestError(429, f"{MAX_CALLS} calls of yours are under way: fetch their answers first")

    def check_events(self, visitor: str) -> None:
        """Refuse another event of a page where too many of its visitor wait.

        Raises:
            RequestError: there is one more than :data:`MAX_EVENTS`.
        """
        queues = self._queue.event_queue_per_concurrency_id.values()
        owners = Counter(self._sessions.owner(event.session_hash) for each in queues for event in each.queue)
        if owners[visitor] >= MAX_EVENTS:
            raise RequestError(429, f"{MAX_EVENTS} things that you asked for wait for their turn: wait for them first")

    def note(self, content: bytes, visitor: str) -> None:
        """Take down the call that an answer of the server has begun.

        Args:
            content: of the answer.
            visitor: who called.
        """
        with suppress(ValueError, TypeError, KeyError):
            event = str(json.loads(content)["event_id"])
            self._waiting[event] = visitor
            self._forget_later(event)

    def fetched(self, event: str) -> None:
        """Let go of a call whose answer was fetched."""
        self._waiting.pop(event, None)
        # Gradio keeps the session of each call, with a copy of the page's settings.
        self._sessions.forget_call(event)

    def _forget_later(self, event: str) -> None:
        asyncio.get_running_loop().call_later(ANSWER_SECONDS, self._forget, event)

    def _forget(self, event: str) -> None:
        if event not in self._waiting:
            return
        running = self._queue.event_ids_to_events.get(event)
        if running is not None and not running.closed:
            return self._forget_later(event)
        self._queue.pending_messages_per_session.pop(event, None)
        self._queue.pending_event_ids_session.pop(event, None)
        self.fetched(event)

    @property
    def _queue(self) -> Any:
        return self._blocks._queue
