"""Where work waits: whoever was served longest ago is next, and waits outside of threads."""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
import time
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import torch
from gradio.context import LocalContext

from vitviz.attention.memory import enough_memory, release_free_memory
from vitviz.errors.kinds import LimitError
from vitviz.system.machine import has_room
from vitviz.system.strangers import MAX_SERVED
from vitviz.ui.progress_reports import ProgressReport, Report, Step, no_report
from vitviz.worker.child import IS_LINUX

Result = TypeVar("Result")
# The interval at which a waiting request reports how many come first.
POLL_SECONDS = 0.5
# The most of these reports a second, of a whole line.
MAX_REPORTS = 200
# Beyond the limit of memory torch ends the process where it finds none for a thread, and the event loop stalls. So what
# has begun has this much, and new work is refused before.
RESERVE_BYTES = 2**30
# Of the threads of long work, so that short work runs first; higher, they would hold Python's lock for too long.
BACKGROUND_NICENESS = 10


def _step_back() -> None:
    """Let the threads of short work run before this one, and before those that it starts for torch."""
    # Elsewhere, threads have no priority of their own; a sandbox may have none at all.
    with suppress(OSError):
        if IS_LINUX:
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), BACKGROUND_NICENESS)


def current_visitor() -> str:
    """The visitor of the current request; empty outside of requests."""
    client = getattr(LocalContext.request.get(None), "client", None)
    return client.host if client is not None else ""


def current_bytes() -> int:
    """The length of the body of the current request."""
    return int(getattr(LocalContext.request.get(None), "headers", {}).get("content-length", 0))


class Line:
    """Places for work, which share torch's processors; of those who wait, whoever was served longest ago is next.

    For one event loop.

    Args:
        places: work at once.
        is_long: whether its work may take seconds, so that the work of other lines runs first.

    Attributes:
        has_even_shares: whether work has no more than its place's part of the processors while other places are free.
        seconds: of its thread's processor, after which a report of work ends it; None if it may take any time.
    """

    def __init__(self, places: int = 1, *, is_long: bool = False) -> None:
        self._places, self._free, self.has_even_shares = places, places, False
        self.seconds: float | None = None
        self._processors = torch.get_num_threads()
        self._threads = ThreadPoolExecutor(places, "vitviz-line", _step_back if is_long else None)
        # By the turn of waiting work, which is done once it has a place: whose it is, and how many were served before.
        self._waiting = dict[asyncio.Future[None], tuple[str, int]]()
        # The number of those who were served, and which of them each visitor was last, while anybody waits.
        self._count, self._served = 0, dict[str, int]()

    def __len__(self) -> int:
        """The number of those who wait or have a place."""
        return len(self._waiting) + self._places - self._free

    async def run(self, work: Callable[[Report], Result], report: Report = no_report) -> Result:
        """What a function returns; a thread calls it, in the context of the request, when it has a place.

        Args:
            work: the function, which takes the report of its progress. It goes on until it ends, or until its report
                raises, even if nobody waits for it any more.
            report: receives the progress, and how many come first; an exception that it raises gives up the turn.

        Raises:
            LimitError: there is not enough memory, or it takes too long.
        """
        visitor = current_visitor()
        if self._free:
            self._free -= 1
        else:
            await self._wait(visitor, report)
        self._serve(visitor)
        context = contextvars.copy_context()
        # It has its place until it ends, if nobody waits for it any more, too.
        result = asyncio.get_running_loop().run_in_executor(self._threads, context.run, self._begin, work, report)
        result.add_done_callback(self._end)
        return await asyncio.shield(result)

    def _begin(self, work: Callable[[Report], Result], report: Report) -> Result:
        begun = time.thread_time()
        # Of this thread. Work at the same time that had all processors would wait for each other's at every step.
        places = self._places if self.has_even_shares else self._places - self._free
        torch.set_num_threads(max(1, self._processors // places))

        def report_in_time(step: Step) -> None:
            report(step)
            if self.seconds is not None and time.thread_time() > begun + self.seconds:
                raise LimitError(
                    f"this takes more than {self.seconds:g} seconds of this server; expected a smaller picture or a "
                    "lower resolution"
                )

        with enough_memory("this request"):
            if not has_room(RESERVE_BYTES):
                release_free_memory()
                if not has_room(RESERVE_BYTES):
                    raise MemoryError
            return work(report_in_time)

    async def _wait(self, visitor: str, report: Report) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting[turn] = visitor, self._count
        try:
            while not turn.done():
                before = sorted(self._waiting, key=self._order).index(turn)
                report(ProgressReport(f"Waiting: {before + 1} before this one"))
                await asyncio.wait([turn], timeout=max(POLL_SECONDS, len(self) / MAX_REPORTS))
        except BaseException:
            if self._waiting.pop(turn, None) is None:
                self._release()
            raise

    def _end(self, result: asyncio.Future[Any]) -> None:
        # An error that nobody waits for is no complaint of the log.
        if not result.cancelled():
            result.exception()
        self._release()

    def _release(self) -> None:
        """Give a place to the next."""
        if not self._waiting:
            self._free += 1
            self._served.clear()
            return
        turn = min(self._waiting, key=self._order)
        del self._waiting[turn]
        turn.set_result(None)

    def _serve(self, visitor: str) -> None:
        """Remember that a visitor is served now, and forget one who was long ago."""
        self._count += 1
        # The first work of a visitor leaves them new, so that their map comes as soon as their analysis.
        is_new = self._served.pop(visitor, None) is None
        self._served[visitor] = self._count - MAX_SERVED * is_new
        if len(self._served) > MAX_SERVED:
            del self._served[next(iter(self._served))]

    def _order(self, turn: asyncio.Future[None]) -> int:
        visitor, served = self._waiting[turn]
        # Whoever is new comes before those who were served lately, not before all: new addresses never end.
        return self._served.get(visitor, served - MAX_SERVED)


class Once:
    """One at a time for each key: whoever comes meanwhile finds what the first has made. For one event loop."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[Hashable, asyncio.Lock] = WeakValueDictionary()

    def __call__(self, key: Hashable) -> asyncio.Lock:
        """The lock of a key, in which to look first."""
        return self._locks.setdefault(key, asyncio.Lock())
