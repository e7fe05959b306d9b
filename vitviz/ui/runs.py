"""The page's requests that take long: their progress, their end, and their replies."""

from __future__ import annotations

import json
import logging
import re
import threading
import time
import traceback
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import gradio as gr

from vitviz.errors.kinds import MethodError, QueryError, VitvizError
from vitviz.errors.messages import choices, quote
from vitviz.ui.arguments import number
from vitviz.ui.handlers import Handlers, sentence
from vitviz.ui.progress_reports import ExpiredError, ProgressReport
from vitviz.ui.server.fair_lock import current_visitor
from vitviz.ui.server.log import INTERNAL_ERROR
from vitviz.weights import DownloadProgress

PAGE = re.compile(r"[\w-]{22,64}", re.ASCII)
MAX_NUMBER = 2**53
# Replies are kept this long, within these limits, for pages that lost them.
KEEP_SECONDS = 60.0
MAX_KEPT, MAX_KEPT_PER_VISITOR, MAX_KEPT_BYTES = 512, 32, 32 * 2**20
WAITING = ProgressReport("Waiting")
EXPECTED = "expected an object with page, number and kind"


class RunEnded(Exception):
    """The visitor stopped the request, sent another one, or left."""


@dataclass(eq=False)
class Run:
    """A request and its progress.

    Args:
        visitor, session: who sent it.
        step: its progress.
        is_begun: False if it was stopped before it arrived.
        is_ended: whether nobody waits for it any more.
        reply: None while it runs.
        nbytes: of the reply.
        touched: time of the request, then of the reply, in seconds.
    """

    visitor: str
    session: str
    step: ProgressReport = WAITING
    is_begun: bool = False
    is_ended: bool = False
    reply: dict[str, Any] | None = None
    nbytes: int = 0
    touched: float = 0.0

    def check(self) -> None:
        """Raise :class:`RunEnded` if nobody waits for it any more."""
        if self.is_ended:
            raise RunEnded


class Runs:
    """The requests of all pages, one at a time for each page. Safe between threads.

    Args:
        handlers: answer the requests.
        clock: the time in seconds.
    """

    def __init__(self, handlers: Handlers, clock: Callable[[], float] = time.monotonic) -> None:
        self.handlers, self._clock = handlers, clock
        self._runs: OrderedDict[tuple[str, int], Run] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._runs)

    def run(self, event: gr.EventData, request: gr.Request) -> dict[str, Any]:
        """The function of Gradio's event, whose data is the request."""
        return self.answer(event._data, str(request.session_hash))

    def answer(self, request: object, session: str) -> dict[str, Any]:
        """The reply to a request of a page.

        Args:
            request: JSON of any kind.
            session: of the page.
        """
        try:
            page, number = _key(request)
        except VitvizError as error:
            return {"page": None, "number": None, "kind": None, "failed": sentence(error)}
        assert isinstance(request, Mapping)
        kind = request.get("kind")
        if not isinstance(kind, str) or kind not in self.handlers.kinds:
            legal = choices(self.handlers.kinds)
            return {"page": page, "number": number, "kind": None, "failed": f"kind = {quote(kind)}: expected {legal}."}
        head = {"page": page, "number": number, "kind": kind}
        run = self._begin(page, number, session)
        if run is None:
            return {**head, "stopped": True}
        reply = {**head, **self._result(kind, request, run)}
        nbytes = len(json.dumps(reply))
        with self._lock:
            run.reply, run.nbytes, run.touched = reply, nbytes, self._clock()
            self._forget()
        return reply

    def _result(self, kind: str, request: Mapping[str, Any], run: Run) -> dict[str, Any]:
        def report(step: ProgressReport | DownloadProgress) -> None:
            run.check()
            if isinstance(step, DownloadProgress):
                step = ProgressReport(f"Downloading {step.repository}", step.done, step.total or 0)
            run.step = step

        try:
            run.check()
            return self.handlers.kinds[kind](request, report)
        except RunEnded:
            return {"stopped": True}
        except ExpiredError:
            return {"expired": True}
        except VitvizError as error:
            return {"failed": sentence(error), "final": _is_final(error)}
        except Exception as error:
            log_unexpected(f"run {kind}", error)
            return {"failed": INTERNAL_ERROR}

    def _begin(self, page: str, number: int, session: str) -> Run | None:
        """A new run in the place of the page's previous one; None if it was stopped or replaced before it arrived."""
        visitor = current_visitor()
        with self._lock:
            begun = {key[1]: run for key, run in self._runs.items() if key[0] == page and run.is_begun}
            if (page, number) in self._runs or max(begun, default=-1) > number:
                return None
            for previous in begun.values():
                previous.is_ended = True
            run = self._runs[page, number] = Run(visitor, session, is_begun=True, touched=self._clock())
        return run

    def progress(self, request: object) -> dict[str, Any]:
        """The progress of a request, or its reply."""
        key = _key(request)
        with self._lock:
            self._forget()
            run = self._runs.get(key)
        if run is None:
            return {"unknown": True}
        if run.reply is not None:
            return {"reply": run.reply}
        return {"done": run.step.done, "total": run.step.total, "text": run.step.text}

    def stop(self, request: object) -> dict[str, Any]:
        """Stop a request, even before it arrives."""
        key = _key(request)
        with self._lock:
            run = self._runs.get(key)
            if run is None:
                reply = {"page": key[0], "number": key[1], "kind": None, "stopped": True}
                self._runs[key] = Run(current_visitor(), "", reply=reply, touched=self._clock())
            else:
                run.is_ended = True
            self._forget()
        return {}

    def closed(self, session: str) -> None:
        """Stop the runs of a closed page."""
        with self._lock:
            for run in self._runs.values():
                run.is_ended = run.is_ended or run.session == session

    def _forget(self) -> None:
        """Drop replies that are too old or too many. The caller holds the lock."""
        answered = [key for key, run in self._runs.items() if run.reply is not None]
        oldest = self._clock() - KEEP_SECONDS
        counts = Counter(self._runs[key].visitor for key in answered)
        nbytes, count = sum(self._runs[key].nbytes for key in answered), len(answered)
        for key in answered:
            run = self._runs[key]
            is_too_much = counts[run.visitor] > MAX_KEPT_PER_VISITOR or count > MAX_KEPT or nbytes > MAX_KEPT_BYTES
            if run.touched > oldest and not is_too_much:
                continue
            del self._runs[key]
            counts[run.visitor] -= 1
            nbytes, count = nbytes - run.nbytes, count - 1

    def answers(self) -> dict[str, Callable[[object], dict[str, Any]]]:
        """The server functions of the page, which answer at once, by name."""
        handlers = self.handlers
        functions: dict[str, Callable[[Any], dict[str, Any]]] = {
            "file": handlers.file,
            "map": handlers.map_quickly,
            "describe": handlers.describe,
            "picture": handlers.picture,
            "progress": self.progress,
            "stop": self.stop,
        }
        return {name: _answering(name, function) for name, function in functions.items()}


def _answering(name: str, function: Callable[[Any], dict[str, Any]]) -> Callable[[object], dict[str, Any]]:
    """A function of this name that answers errors with one sentence."""

    def answer(request: object) -> dict[str, Any]:
        try:
            if not isinstance(request, Mapping):
                raise MethodError(f"{name} = {quote(request)}: expected an object")
            return function(request)
        except ExpiredError:
            return {"expired": True}
        except VitvizError as error:
            return {"refused": sentence(error), "final": _is_final(error)}
        except Exception as error:
            log_unexpected(name, error)
            return {"refused": INTERNAL_ERROR}

    answer.__name__ = name
    return answer


def _is_final(error: VitvizError) -> bool:
    """Whether the same request fails every time, so that the page need not try again."""
    return isinstance(error, MethodError | QueryError)


def _key(request: object) -> tuple[str, int]:
    """Page and number of a request.

    Raises:
        MethodError: it has none.
    """
    if not isinstance(request, Mapping):
        raise MethodError(f"request = {quote(request)}: {EXPECTED}")
    page = request.get("page")
    if not isinstance(page, str) or PAGE.fullmatch(page) is None:
        raise MethodError(f"page = {quote(page)}: expected 22 to 64 letters, digits, - and _")
    return page, int(number("number", request.get("number"), 0, MAX_NUMBER, whole=True))


def log_unexpected(where: str, error: Exception) -> None:
    """Log type and place of an unexpected error, and nothing that a visitor sent."""
    place = "".join(traceback.format_tb(error.__traceback__))
    logging.getLogger(__name__).error("%s: %s\n%s", where, type(error).__name__, place)
