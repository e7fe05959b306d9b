"""Lines: work that has no place waits outside of threads, and many requests of one visitor delay only their own."""

from __future__ import annotations

import asyncio
import contextvars
from collections import Counter
from collections.abc import Callable, Coroutine, Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from gradio.context import LocalContext

from vitviz.attention.memory import enough_memory
from vitviz.ui.progress_reports import ProgressReport, Report, RunEnded, Step, no_report
from vitviz.ui.server.bodies import RequestError
from vitviz.ui.server.hosts import visitor_key

Result = TypeVar("Result")
# The interval at which a waiting request reports how many come first.
POLL_SECONDS = 0.5


def current_visitor() -> str:
    """The visitor of the current request; empty outside of requests."""
    request = LocalContext.request.get(None)
    client = getattr(request, "client", None)
    return visitor_key(client.host) if client is not None else ""


@dataclass(frozen=True, eq=False)
class _Ticket:
    """Work that waits or has a place.

    Args:
        visitor: whose it is.
        round: a visitor has one ticket in each.
        turn: is done once it has a place.
    """

    visitor: str
    round: int
    turn: asyncio.Future[None]


class Line:
    """Places for work of a kind, in rounds of one place per visitor, and by arrival within a round.

    This is fair queueing (Demers, Keshav and Shenker 1989, "Analysis and Simulation of a Fair Queueing Algorithm") with
    places in place of bytes. For one event loop.

    Args:
        places: work at once; each has a thread.
        share: the most places of one visitor.
    """

    def __init__(self, places: int = 1, share: int = 1) -> None:
        self._places, self._share = places, share
        self._pool = ThreadPoolExecutor(places)
        self._tickets: list[_Ticket] = []

    def __len__(self) -> int:
        """The number of those who wait or have a place."""
        return len(self._tickets)

    async def run(self, work: Callable[[], Result], report: Report = no_report) -> Result:
        """What a function returns; a thread calls it, in the context of the request, when it has a place.

        Args:
            work: the function. It keeps its place until it ends, even if nobody waits for it any more.
            report: receives how many come first; an exception that it raises gives up the turn.

        Raises:
            LimitError: there is not enough memory.
        """
        ticket = self._join(current_visitor())
        try:
            while not ticket.turn.done():
                report(ProgressReport(f"Waiting: {self._tickets.index(ticket)} before this one"))
                await asyncio.wait([ticket.turn], timeout=POLL_SECONDS)
            job = self._pool.submit(contextvars.copy_context().run, _with_memory, work)
        except BaseException:
            self._leave(ticket)
            raise
        loop = asyncio.get_running_loop()
        job.add_done_callback(lambda _: _call(loop, self._leave, ticket))
        return await asyncio.wrap_future(job)

    def _join(self, visitor: str) -> _Ticket:
        rounds = [ticket.round for ticket in self._tickets if ticket.visitor == visitor]
        current = self._tickets[0].round if self._tickets else 0
        ticket = _Ticket(visitor, max(rounds) + 1 if rounds else current, asyncio.get_running_loop().create_future())
        later = (index for index, other in enumerate(self._tickets) if other.round > ticket.round)
        self._tickets.insert(next(later, len(self._tickets)), ticket)
        self._admit()
        return ticket

    def _leave(self, ticket: _Ticket) -> None:
        self._tickets.remove(ticket)
        self._admit()

    def _admit(self) -> None:
        held = Counter(ticket.visitor for ticket in self._tickets if ticket.turn.done())
        for ticket in self._tickets:
            if held.total() >= self._places:
                break
            if not ticket.turn.done() and held[ticket.visitor] < self._share:
                ticket.turn.set_result(None)
                held[ticket.visitor] += 1


class UnderWay:
    """Counts the requests of each visitor. For one event loop.

    Args:
        most: of one visitor.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._count: Counter[str] = Counter()

    @contextmanager
    def request(self) -> Iterator[None]:
        """The time of a request.

        Raises:
            RequestError: the visitor has too many.
        """
        visitor = current_visitor()
        if self._count[visitor] >= self._most:
            raise RequestError(429, f"{self._most} of your requests are under way: wait for them")
        self._count[visitor] += 1
        try:
            yield
        finally:
            self._count[visitor] -= 1
            self._count += Counter()


def _with_memory(work: Callable[[], Result]) -> Result:
    with enough_memory("this request"):
        return work()


def _call(loop: asyncio.AbstractEventLoop, function: Callable[[_Ticket], None], ticket: _Ticket) -> None:
    # The loop of a process that ends is closed.
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(function, ticket)


@dataclass(eq=False)
class _Shared(Generic[Result]):
    """Work that several wait for, and their reports."""

    reports: list[Report] = field(default_factory=list)
    task: asyncio.Task[Result] | None = None

    def report(self, step: Step) -> None:
        if not self.reports:
            raise asyncio.CancelledError
        for report in list(self.reports):
            with suppress(RunEnded):
                report(step)


class Once(Generic[Result]):
    """Work that is done once for all who ask for it at the same time, until nobody does. For one event loop."""

    def __init__(self) -> None:
        self._shared: dict[Hashable, _Shared[Result]] = {}

    async def get(
        self, key: Hashable, work: Callable[[Report], Coroutine[Any, Any, Result]], report: Report = no_report
    ) -> Result:
        """The result of the work of a key, which takes the report of the progress to all who wait.

        It ends when the last of those who wait is cancelled.
        """
        shared = self._shared.get(key)
        if shared is None:
            shared = self._shared[key] = _Shared()
            shared.task = asyncio.create_task(work(shared.report))
            shared.task.add_done_callback(lambda task: self._forget(key, task))
        assert shared.task is not None
        shared.reports.append(report)
        try:
            return await asyncio.shield(shared.task)
        finally:
            shared.reports.remove(report)
            if not shared.reports:
                shared.task.cancel()
                self._forget(key, shared.task)

    def _forget(self, key: Hashable, task: asyncio.Task[Result]) -> None:
        if key in self._shared and self._shared[key].task is task:
            del self._shared[key]
        if task.done() and not task.cancelled():
            task.exception()
