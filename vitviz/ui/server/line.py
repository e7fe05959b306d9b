"""Lines: work that has not begun waits outside of threads, and many requests of one visitor delay only their own."""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Hashable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakSet

from gradio.context import LocalContext

from vitviz.attention.memory import enough_memory, release_free_memory
from vitviz.system.machine import has_room
from vitviz.ui.progress_reports import ProgressReport, Report, RunEnded, Step, no_report
from vitviz.ui.server.hosts import visitor_key
from vitviz.worker import NICENESS
from vitviz.worker.child import IS_LINUX

Result = TypeVar("Result")
# The interval at which a waiting request reports how many come first.
POLL_SECONDS = 0.5
# The most of these reports a second, of a whole line.
MAX_REPORTS = 200
# A turn, if others wait: short beside what a visitor notices, and long beside the cost of changing turns.
TURN_SECONDS = 0.25
# Whoever uses more than a fiftieth of a place comes after those who use less, by five minutes at most.
WEIGHT, MAX_AHEAD_SECONDS = 50.0, 300.0
# Of the processes that open files: of long work, and of a visitor who comes after others by so much.
MAX_NICENESS, MUCH_SECONDS = 19, 60.0
# Until when each visitor's use of all lines puts them behind others, in seconds of the process. For one event loop.
CLOCKS: dict[str, float] = {}
# Work of each line that has begun and waits for another turn. It holds what it has computed so far.
WAITING_ANEW = 4
# Beyond the limit torch ends the process where it finds no memory for a thread, and the event loop stalls. So what has
# begun has this much, and new work is refused before.
RESERVE_BYTES = 2**30
# Those who let go of what they keep when there is no room.
KEEPERS: WeakSet[Keeper] = WeakSet()
# Of the threads of long work, so that short work runs first; higher, they would hold Python's lock for too long.
BACKGROUND_NICENESS = 10


class Keeper(Protocol):
    """Keeps what can be made again."""

    def relieve(self) -> None:
        """Let go of what has not been used lately."""


def _step_back() -> None:
    """Let the threads of short work run before this one, and before those that it starts for torch."""
    # Elsewhere, threads have no priority of their own; a sandbox may have none at all.
    with suppress(OSError):
        if IS_LINUX:
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), BACKGROUND_NICENESS)


# Of all lines, which bound by themselves what has begun: with threads of its own, each would keep its most for ever.
_THREADS = ThreadPoolExecutor(1000, "vitviz-line")
_BACKGROUND_THREADS = ThreadPoolExecutor(1000, "vitviz-background", _step_back)


def current_visitor() -> str:
    """The visitor of the current request; empty outside of requests."""
    request = LocalContext.request.get(None)
    client = getattr(request, "client", None)
    return visitor_key(client.host) if client is not None else ""


@dataclass(eq=False)
class _Ticket:
    """Work that waits or has a place.

    Args:
        visitor: whose it is.
        joined: when it came.
        turn: is done while it has a place.
        began: when it got that place, or the one before; None if it has never had one.
    """

    visitor: str
    joined: float
    turn: asyncio.Future[None]
    began: float | None = None

    def wait(self) -> None:
        """Give the place back, and wait for another turn."""
        self.turn = self.turn.get_loop().create_future()

    def begin(self) -> None:
        """Have a turn."""
        self.began = time.monotonic()
        self.turn.set_result(None)


class Line:
    """Places for work of a kind; whoever has used places least lately comes first, and otherwise who came first.

    Each visitor has a clock for all lines, which every second in a place puts :data:`WEIGHT` seconds ahead, and work
    has its turn by its visitor's clock (Zhang 1990, "VirtualClock: a new traffic control algorithm for packet switching
    networks").
    Work whose turn lasts gives its place back when it reports progress, and waits for another turn if it is no longer
    first. Until then its thread waits, too, which is its own. For one event loop.

    Args:
        places: work at once.
        share: the most work of one visitor that has begun.
        begun: the most work that has begun, with places or waiting for another turn, since it holds memory.
        is_long: whether its work may take seconds, so that the work of other lines runs first.
    """

    def __init__(self, places: int = 1, share: int = 1, begun: int | None = None, *, is_long: bool = False) -> None:
        self._places, self._share, self._begun = places, share, begun or places + WAITING_ANEW
        self._niceness, self._threads = (MAX_NICENESS, _BACKGROUND_THREADS) if is_long else (0, _THREADS)
        # In the order in which they came.
        self._tickets: list[_Ticket] = []
        # The order of their turns, and when it was made.
        self._places_in_line: dict[_Ticket, int] = {}
        self._ordered = 0.0

    def __len__(self) -> int:
        """The number of those who wait or have a place."""
        return len(self._tickets)

    async def run(self, work: Callable[[Report], Result], report: Report = no_report) -> Result:
        """What a function returns; a thread calls it, in the context of the request, when it has a place.

        Args:
            work: the function, which takes the report of its progress. It goes on until it ends, or until its report
                raises, even if nobody waits for it any more.
            report: receives the progress, and how many come first; an exception that it raises gives up the turn.

        Raises:
            LimitError: there is not enough memory.
        """
        loop = asyncio.get_running_loop()
        ticket = _Ticket(current_visitor(), time.monotonic(), loop.create_future())

        def report_and_take_turns(step: Step) -> None:
            report(step)
            assert ticket.began is not None
            if time.monotonic() > ticket.began + TURN_SECONDS and len(self._tickets) > self._places:
                asyncio.run_coroutine_threadsafe(self._wait_anew(ticket, report), loop).result()

        self._tickets.append(ticket)
        self._admit()
        try:
            await self._wait(ticket, report)
            context = contextvars.copy_context()
            context.run(NICENESS.set, max(self._niceness, _niceness(ticket.visitor)))
            job = self._threads.submit(context.run, _with_memory, partial(work, report_and_take_turns))
        except BaseException:
            self._leave(ticket)
            raise
        # It goes on if nobody waits for it any more, and has its place until it ends.
        result = asyncio.wrap_future(job)

        def end(result: asyncio.Future[Result]) -> None:
            # An error that nobody waits for is no complaint of the log.
            if not result.cancelled():
                result.exception()
            self._leave(ticket)

        result.add_done_callback(end)
        return await asyncio.shield(result)

    async def _wait(self, ticket: _Ticket, report: Report) -> None:
        while not ticket.turn.done():
            report(ProgressReport(f"Waiting: {self._before(ticket)} before this one"))
            await asyncio.wait([ticket.turn], timeout=max(POLL_SECONDS, len(self) / MAX_REPORTS))

    async def _wait_anew(self, ticket: _Ticket, report: Report) -> None:
        self._count(ticket)
        ticket.wait()
        self._admit()
        await self._wait(ticket, report)

    def _leave(self, ticket: _Ticket) -> None:
        self._tickets.remove(ticket)
        self._count(ticket)
        self._admit()

    def _count(self, ticket: _Ticket) -> None:
        """Put the clock of a visitor ahead by the turn of a ticket, if it has a place."""
        now = time.monotonic()
        if ticket.turn.done() and ticket.began is not None:
            clock = max(ticket.began, CLOCKS.get(ticket.visitor, 0)) + WEIGHT * (now - ticket.began)
            CLOCKS[ticket.visitor] = min(clock, now + MAX_AHEAD_SECONDS)
        for visitor in [visitor for visitor, clock in CLOCKS.items() if clock <= now]:
            del CLOCKS[visitor]

    def _admit(self) -> None:
        free = self._places - sum(ticket.turn.done() for ticket in self._tickets)
        while free > 0:
            begun = Counter(ticket.visitor for ticket in self._tickets if ticket.began is not None)
            may_begin = begun.total() < self._begun
            # Of each visitor, who came first.
            first = dict[str, _Ticket]()
            for ticket in self._tickets:
                is_legal = ticket.began is not None or (may_begin and begun[ticket.visitor] < self._share)
                if is_legal and not ticket.turn.done():
                    first.setdefault(ticket.visitor, ticket)
            if not first:
                break
            min(first.values(), key=_order).begin()
            free -= 1

    def _before(self, ticket: _Ticket) -> int:
        """How many come before one, by an order that is at most a millisecond old for each who waits."""
        if time.monotonic() >= self._ordered + len(self) / 1000:
            self._places_in_line = {each: place for place, each in enumerate(sorted(self._tickets, key=_order))}
            self._ordered = time.monotonic()
        return self._places_in_line.get(ticket, len(self) - 1)


def _order(ticket: _Ticket) -> tuple[bool, float]:
    return not ticket.turn.done(), max(ticket.joined, CLOCKS.get(ticket.visitor, 0))


def _niceness(visitor: str) -> int:
    """Of the processes of a visitor's work, by how far behind others it is."""
    ahead = CLOCKS.get(visitor, 0) - time.monotonic()
    return round(MAX_NICENESS * min(1.0, max(0.0, ahead) / MUCH_SECONDS))


def _with_memory(work: Callable[[], Result]) -> Result:
    with enough_memory("this request"):
        if not has_room(RESERVE_BYTES):
            for keeper in list(KEEPERS):
                keeper.relieve()
            release_free_memory()
            if not has_room(RESERVE_BYTES):
                raise MemoryError
        return work()


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
