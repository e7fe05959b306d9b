"""The page's requests that take long: each is a stream of lines, progress first and its reply last."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from vitviz.attribution.json_values import number, word
from vitviz.errors.kinds import CheckpointError, MethodError, QueryError, VitvizError
from vitviz.errors.messages import quote
from vitviz.progress import DownloadProgress
from vitviz.system.strangers import GRACE_SECONDS
from vitviz.ui.handlers import Handlers
from vitviz.ui.normalize import sentence
from vitviz.ui.progress_reports import ExpiredError, ProgressReport, RunEnded, Step
from vitviz.ui.server.line import current_bytes, current_visitor
from vitviz.ui.server.log import INTERNAL_ERROR, log_unexpected
from vitviz.ui.server.rule import RequestError

PAGE = re.compile(r"[\w-]{22,64}", re.ASCII)
MAX_NUMBER = 2**53
# The interval between two lines, and the longest silence, after which proxies close a connection.
LINE_SECONDS, SILENCE_SECONDS = 0.1, 15.0
WAITING, STOPPED = ProgressReport("Waiting"), {"stopped": True}


Result = TypeVar("Result")


@dataclass(eq=False)
class Run:
    """A request and its progress.

    Args:
        key: the page, and the number of the request among those of the page.
        step: its progress.
        is_ended: whether nobody waits for it any more.
        readers: connections that read its lines.
        task: computes the reply; None if it was ended before it arrived.
    """

    key: tuple[str, int]
    step: ProgressReport = WAITING
    is_ended: bool = False
    readers: int = 0
    task: asyncio.Task[dict[str, Any]] | None = None

    def end(self) -> None:
        """End it: at once where it waits, and at its next report where a thread computes."""
        self.is_ended = True
        if self.task is not None:
            self.task.cancel()

    @property
    def reply(self) -> dict[str, Any]:
        """Its reply, once it is over."""
        return STOPPED if self.task is None or self.task.cancelled() else self.task.result()

    @property
    def is_over(self) -> bool:
        """Whether it has a reply, or never gets one."""
        return self.task is None or self.task.done()


class PageRuns:
    """The runs of all pages, one at a time for each page. For one event loop.

    Args:
        handlers: answer the requests.
    """

    def __init__(self, handlers: Handlers) -> None:
        self.handlers = handlers
        self._runs: dict[tuple[str, int], Run] = {}

    def __len__(self) -> int:
        return len(self._runs)

    async def lines(self, request: object) -> AsyncGenerator[dict[str, Any], None]:
        """Progress, and at last the reply, of a request; the same request again reads on.

        Raises:
            MethodError: the request has no page, number or kind.
            RequestError: the visitor has too many requests.
        """
        run = self._run(request)
        run.readers += 1
        last, last_at = WAITING, time.monotonic()
        try:
            while not run.is_over:
                assert run.task is not None
                await asyncio.wait([run.task], timeout=LINE_SECONDS)
                step, now = run.step, time.monotonic()
                if not run.is_over and (step != last or now > last_at + SILENCE_SECONDS):
                    last, last_at = step, now
                    yield step._asdict()
            yield {"reply": run.reply}
        finally:
            run.readers -= 1
            self._leave_later(run)

    def end(self, request: object) -> None:
        """End a run, even before it arrives; without a number, all runs of the page, which closes.

        Raises:
            MethodError: the request has no page.
        """
        page, serial = _key(request)
        if serial is not None and (page, serial) not in self._runs:
            run = self._runs[page, serial] = Run((page, serial))
            self._leave_later(run)
        for key, run in self._runs.items():
            if key[0] == page and serial in (None, key[1]):
                run.end()

    def _run(self, request: Any) -> Run:
        """The run of a request: the one that is there, or a new one in the place of the page's previous one."""
        key, kind = _key(request), word("kind", request.get("kind"), self.handlers.kinds)
        number("number", key[1], 0, MAX_NUMBER, whole=True)
        if key in self._runs:
            return self._runs[key]
        others = [run for other, run in self._runs.items() if other[0] == key[0]]
        if any(run.key[1] > key[1] for run in others if run.task is not None):
            return Run(key)
        for run in others:
            run.end()
        run = self._runs[key] = Run(key)
        run.task = asyncio.create_task(self._reply(run, kind, request))
        run.task.add_done_callback(lambda _: self._leave_later(run))
        return run

    async def _reply(self, run: Run, kind: str, request: Any) -> dict[str, Any]:
        def report(step: Step) -> None:
            if run.is_ended:
                raise RunEnded
            if isinstance(step, DownloadProgress):
                step = ProgressReport(f"Downloading {step.repository}", step.done, step.total or 0)
            run.step = step

        async with self.handlers.service.under_way.request(current_visitor(), current_bytes()):
            return await outcome(kind, self.handlers.kinds[kind](request, report))

    def _leave_later(self, run: Run) -> None:
        asyncio.get_running_loop().call_later(GRACE_SECONDS, self._leave, run)

    def _leave(self, run: Run) -> None:
        """End a run that nobody has read for a while, and forget it once it is over."""
        if run.readers:
            return
        run.end()
        if run.is_over and self._runs.get(run.key) is run:
            del self._runs[run.key]


async def outcome(name: str, answer: Awaitable[Result]) -> Result | dict[str, Any]:
    """What is answered, or why it cannot be: ``failed``, a sentence, and ``final`` if it always will be refused."""
    try:
        return await answer
    except RequestError:
        raise
    except RunEnded:
        return STOPPED
    except ExpiredError:
        return {"expired": True}
    except VitvizError as error:
        architectures = {"architectures": error.architectures} if isinstance(error, CheckpointError) else {}
        return {"failed": sentence(error), "final": isinstance(error, MethodError | QueryError), **architectures}
    except Exception as error:
        log_unexpected(name, error)
        return {"failed": INTERNAL_ERROR}


def _key(request: object) -> tuple[str, Any]:
    """The page of a request, and its number; None if there is none."""
    page, value = (request.get("page"), request.get("number")) if isinstance(request, Mapping) else (None, None)
    if not isinstance(page, str) or PAGE.fullmatch(page) is None:
        raise MethodError(f"page = {quote(page)}: expected 22 to 64 letters, digits, - and _")
    return page, None if value is None else int(number("number", value, 0, MAX_NUMBER, whole=True))
