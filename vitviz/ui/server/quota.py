"""Bounds on what each visitor has at once."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from weakref import WeakValueDictionary


class RequestError(Exception):
    """A refused request.

    Args:
        status: the HTTP status.
        reason: one sentence.
    """

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Quota:
    """Counts what each visitor has at once of a kind: requests, bytes. For one event loop.

    Args:
        most: of one visitor.
        reason: the message for a visitor who has it all.
        most_together: of all visitors.
    """

    def __init__(self, most: int, reason: str, most_together: float = math.inf) -> None:
        self.most, self.reason, self.most_together = most, reason, most_together
        self._held: Counter[str] = Counter()

    @property
    def total(self) -> int:
        """What all visitors have."""
        return self._held.total()

    def take(self, visitor: str, count: int = 1) -> None:
        """Count what a visitor gets.

        Raises:
            RequestError: it is too much.
        """
        if self._held[visitor] + count > self.most:
            raise RequestError(429, self.reason)
        if self.total + count > self.most_together:
            raise RequestError(503, "this server has too much to do now: try again in a moment")
        self._held[visitor] += count

    def give_back(self, visitor: str, count: int = 1) -> None:
        """Count no longer what a visitor had."""
        self._held[visitor] -= count
        self._held += Counter()

    @contextmanager
    def held(self, visitor: str) -> Iterator[None]:
        """The time in which a visitor has one.

        Raises:
            RequestError: the visitor has too many.
        """
        self.take(visitor)
        try:
            yield
        finally:
            self.give_back(visitor)


class Turns:
    """Lets a few requests of each visitor be answered at a time; more wait on the event loop. For one event loop.

    Args:
        at_once: of one visitor.
        most: of one visitor, with those that wait.
        reason: the message for a visitor who has so many.
    """

    def __init__(self, at_once: int, most: int, reason: str) -> None:
        self._at_once, self._quota = at_once, Quota(most, reason)
        self._places: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    @property
    def total(self) -> int:
        """Requests of all visitors that are answered or wait."""
        return self._quota.total

    @asynccontextmanager
    async def turn(self, visitor: str) -> AsyncIterator[None]:
        """The time in which a request is answered.

        Raises:
            RequestError: the visitor has too many.
        """
        with self._quota.held(visitor):
            places = self._places.setdefault(visitor, asyncio.Semaphore(self._at_once))
            async with places:
                yield
