"""Whose turn it is to run a model."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

# Options of the page's events that run a model: one after the other, since the states of a page are read when an event
# begins, and two at a time would each undo what the other did.
RUNS_MODEL: dict[str, Any] = {"concurrency_id": "model", "concurrency_limit": 1}
# Of those that may take long: so many are under way or wait for their turn, each in a thread.
RUNS_LONG: dict[str, Any] = {"concurrency_id": "long", "concurrency_limit": 24}
# So often, who waits is asked whether it still wants to.
ASK_EVERY = 0.5


class Lane:
    """One at a time, each in the order in which it came. Safe between threads."""

    def __init__(self) -> None:
        self._waiting: deque[object] = deque()
        self._changed = threading.Condition()

    def __len__(self) -> int:
        """How many wait or have their turn."""
        return len(self._waiting)

    @contextmanager
    def turn(self, waiting: Callable[[int], None] | None = None) -> Iterator[None]:
        """Wait for one's turn, and have it.

        Args:
            waiting: is told how many are before this one, at first and now and then; an exception that it raises gives
                the place up.
        """
        ticket = object()
        with self._changed:
            self._waiting.append(ticket)
        try:
            self._wait(ticket, waiting)
            yield
        finally:
            with self._changed:
                self._waiting.remove(ticket)
                self._changed.notify_all()

    def _wait(self, ticket: object, waiting: Callable[[int], None] | None) -> None:
        told = -1
        while True:
            with self._changed:
                before = self._waiting.index(ticket)
                if before and before == told:
                    self._changed.wait(ASK_EVERY)
                    before = self._waiting.index(ticket)
            if not before:
                return
            # Told outside of the lock: others need not wait while a message is sent.
            if waiting is not None:
                waiting(before)
            told = before
