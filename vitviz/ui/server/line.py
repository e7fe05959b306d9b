"""A line for threads: the visitor who holds the fewest is first, so that many requests of one delay only their own."""

from __future__ import annotations

import asyncio
import contextvars
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from vitviz.ui.server.bodies import RequestError
from vitviz.ui.server.fair_lock import current_visitor

Result = TypeVar("Result")


def first_in_line(waiting: Sequence[str], held: Mapping[str, int], share: float) -> int | None:
    """The index of the visitor whose turn it is.

    Args:
        waiting: visitors by arrival.
        held: places of each visitor.
        share: the most places of one visitor.

    Returns:
        that of the first with the fewest places; None if each of them has a whole share.
    """
    index = min(range(len(waiting)), key=lambda index: held.get(waiting[index], 0), default=None)
    return None if index is None or held.get(waiting[index], 0) >= share else index


class FairThreads:
    """Threads, and requests that wait for one without holding any. For one event loop.

    Args:
        threads: of all visitors together.
        share: the most threads of one visitor.
        most: the most requests of one visitor, with those that wait.
    """

    def __init__(self, threads: int, share: int, most: int) -> None:
        self._threads, self._share, self._most = threads, share, most
        self._pool = ThreadPoolExecutor(threads)
        self._held: Counter[str] = Counter()
        self._waiting: list[tuple[str, asyncio.Future[None]]] = []

    async def run(self, function: Callable[[], Result]) -> Result:
        """The result of a function, which a thread calls in the context of the request once it is the visitor's turn.

        Raises:
            RequestError: the visitor has too many requests.
        """
        visitor, loop = current_visitor(), asyncio.get_running_loop()
        if self._held[visitor] + sum(other == visitor for other, _ in self._waiting) >= self._most:
            raise RequestError(429, f"{self._most} of your requests are under way: wait for them")
        entry = visitor, loop.create_future()
        self._waiting.append(entry)
        self._admit()
        try:
            await entry[1]
            return await loop.run_in_executor(self._pool, contextvars.copy_context().run, function)
        finally:
            if entry in self._waiting:
                self._waiting.remove(entry)
            elif not entry[1].cancelled():
                self._held[visitor] -= 1
                self._held += Counter()
            self._admit()

    def _admit(self) -> None:
        # One that is cancelled leaves by itself.
        self._waiting = [entry for entry in self._waiting if not entry[1].cancelled()]
        while self._held.total() < self._threads:
            index = first_in_line([visitor for visitor, _ in self._waiting], self._held, self._share)
            if index is None:
                return
            visitor, admitted = self._waiting.pop(index)
            self._held[visitor] += 1
            admitted.set_result(None)
