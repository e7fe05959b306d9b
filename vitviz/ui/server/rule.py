"""The one rule for strangers: a visitor has so many requests under way, and the next ones wait."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from weakref import WeakValueDictionary

from starlette.exceptions import HTTPException

from vitviz.system.strangers import AT_ONCE, MOST, REQUEST_BYTES


class RequestError(HTTPException):
    """A refused request: the HTTP status, and one sentence."""


class UnderWay:
    """The requests of each visitor that are under way. For one event loop.

    Args:
        at_once: of one visitor; more wait on the event loop.
        most: of one visitor, with those that wait.
    """

    def __init__(self, at_once: int = AT_ONCE, most: int = MOST) -> None:
        self._at_once, self._most = at_once, most
        self.counts: Counter[str] = Counter()
        self._places: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    def place(self, visitor: str) -> asyncio.Semaphore:
        """The places of a visitor, of which one is taken while a request is answered."""
        return self._places.setdefault(visitor, asyncio.Semaphore(self._at_once))

    @asynccontextmanager
    async def request(self, visitor: str, nbytes: int = 0) -> AsyncIterator[None]:
        """The time in which a request counts and has a place; arguments and errors are those of :meth:`counted`."""
        with self.counted(visitor, nbytes):
            async with self.place(visitor):
                yield

    @contextmanager
    def counted(self, visitor: str, nbytes: int = 0) -> Iterator[None]:
        """The time in which a request counts: while its body arrives, it waits, and its answer is taken.

        Args:
            visitor: whose it is.
            nbytes: of its body, which waits with it: a large one counts as several.

        Raises:
            RequestError: the visitor has too many.
        """
        count = 1 + nbytes // REQUEST_BYTES
        if self.counts[visitor] + count > self._most:
            raise RequestError(429, f"{self._most} of your requests are under way: wait for them")
        self.counts[visitor] += count
        try:
            yield
        finally:
            self.counts[visitor] -= count
            self.counts += Counter()
