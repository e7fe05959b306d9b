"""The one event of the page: what takes long, how far it is, how it is stopped, and what came of it."""

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
from vitviz.ui.server.fair_lock import current_visitor
from vitviz.ui.steps import ExpiredError, Step
from vitviz.weights import DownloadProgress

PAGE = re.compile(r"[\w-]{22,64}", re.ASCII)
MAX_NUMBER = 2**53
# How long an answer is kept for a page that lost it, and how much of all answers together.
KEEP_SECONDS = 60.0
MAX_KEPT, MAX_KEPT_PER_VISITOR, MAX_KEPT_BYTES = 512, 32, 32 * 2**20
UNEXPECTED = "The server failed to answer this request; what happened is in its log."
WAITING = Step("Waiting")
EXPECTED = "expected an object with page, number and kind"


class RunEnded(Exception):
    """The visitor asked to stop or for something else, or has left."""


@dataclass(eq=False)
class Run:
    """A request that was asked for, and what is known of it.

    Args:
        visitor, session: whose it is.
        step: how far it is.
        is_begun: not where it was stopped before.
        is_ended: whether nobody wants it any more.
        reply: what came of it; None while it runs.
        nbytes: of the reply.
        touched: when it was asked for, or answered.
    """

    visitor: str
    session: str
    step: Step = WAITING
    is_begun: bool = False
    is_ended: bool = False
    reply: dict[str, Any] | None = None
    nbytes: int = 0
    touched: float = 0.0

    def check(self) -> None:
        """End it where nobody wants it any more.

        Raises:
            RunEnded: that is so.
        """
        if self.is_ended:
            raise RunEnded


class Runs:
    """The requests of all pages, one at a time of each. Safe between threads.

    Args:
        handlers: what answers them.
        clock: seconds.
    """

    def __init__(self, handlers: Handlers, clock: Callable[[], float] = time.monotonic) -> None:
        self.handlers, self._clock = handlers, clock
        self._runs: OrderedDict[tuple[str, int], Run] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._runs)

    def run(self, event: gr.EventData, request: gr.Request) -> dict[str, Any]:
        """Gradio's event: what the page asks for is in its data."""
        return self.answer(event._data, str(request.session_hash))

    def answer(self, request: object, session: str) -> dict[str, Any]:
        """The reply to a request of a page.

        Args:
            request: JSON of any kind.
            session: of the page.
        """
        try:
            page, count = _named(request)
        except VitvizError as error:
            return {"page": None, "number": None, "kind": None, "failed": sentence(error)}
        assert isinstance(request, Mapping)
        kind = request.get("kind")
        if not isinstance(kind, str) or kind not in self.handlers.kinds:
            legal = choices(self.handlers.kinds)
            return {"page": page, "number": count, "kind": None, "failed": f"kind = {quote(kind)}: expected {legal}."}
        head = {"page": page, "number": count, "kind": kind}
        run = self._begin(page, count, session)
        if run is None:
            return {**head, "stopped": True}
        reply = {**head, **self._result(kind, request, run)}
        nbytes = len(json.dumps(reply))
        with self._lock:
            run.reply, run.nbytes, run.touched = reply, nbytes, self._clock()
            self._forget()
        return reply

    def _result(self, kind: str, request: Mapping[str, Any], run: Run) -> dict[str, Any]:
        def report(state: Step | DownloadProgress) -> None:
            run.check()
            if isinstance(state, DownloadProgress):
                state = Step(f"Downloading {state.repository}", state.done, state.total or 0)
            run.step = state

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
            return {"failed": UNEXPECTED}

    def _begin(self, page: str, count: int, session: str) -> Run | None:
        """Note a request, which replaces the page's one before; None where it is not wanted any more."""
        visitor = current_visitor()
        with self._lock:
            begun = {key[1]: run for key, run in self._runs.items() if key[0] == page and run.is_begun}
            if (page, count) in self._runs or max(begun, default=-1) > count:
                return None
            for before in begun.values():
                before.is_ended = True
            run = self._runs[page, count] = Run(visitor, session, is_begun=True, touched=self._clock())
        return run

    def progress(self, request: object) -> dict[str, Any]:
        """How far a request is, or what came of it."""
        key = _named(request)
        with self._lock:
            self._forget()
            run = self._runs.get(key)
        if run is None:
            return {"unknown": True}
        if run.reply is not None:
            return {"reply": run.reply}
        return {"done": run.step.done, "total": run.step.total, "text": run.step.text}

    def stop(self, request: object) -> dict[str, Any]:
        """Stop a request, be it one that has not begun yet."""
        key = _named(request)
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
        """Stop what runs for a page that is closed."""
        with self._lock:
            for run in self._runs.values():
                run.is_ended = run.is_ended or run.session == session

    def _forget(self) -> None:
        """Let go of answers that are old or too many; to be called with the lock."""
        over = [key for key, run in self._runs.items() if run.reply is not None]
        end = self._clock() - KEEP_SECONDS
        held = Counter(self._runs[key].visitor for key in over)
        nbytes, count = sum(self._runs[key].nbytes for key in over), len(over)
        for key in over:
            run = self._runs[key]
            is_too_much = held[run.visitor] > MAX_KEPT_PER_VISITOR or count > MAX_KEPT or nbytes > MAX_KEPT_BYTES
            if run.touched > end and not is_too_much:
                continue
            del self._runs[key]
            held[run.visitor] -= 1
            nbytes, count = nbytes - run.nbytes, count - 1

    def answers(self) -> dict[str, Callable[[object], dict[str, Any]]]:
        """What answers a page at once, by name."""
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
    """A function whose errors are answers of one sentence."""

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
            return {"refused": UNEXPECTED}

    return answer


def _is_final(error: VitvizError) -> bool:
    """Whether the same request can never be answered, so that there is no use in trying again."""
    return isinstance(error, MethodError | QueryError)


def _named(request: object) -> tuple[str, int]:
    """The page and the number that a request says.

    Raises:
        MethodError: it says none.
    """
    if not isinstance(request, Mapping):
        raise MethodError(f"request = {quote(request)}: {EXPECTED}")
    page = request.get("page")
    if not isinstance(page, str) or PAGE.fullmatch(page) is None:
        raise MethodError(f"page = {quote(page)}: expected 22 to 64 letters, digits, - and _")
    return page, int(number("number", request.get("number"), 0, MAX_NUMBER, whole=True))


def log_unexpected(where: str, error: Exception) -> None:
    """Note what nobody expected: its kind and where it was, and nothing of what a visitor sent."""
    place = "".join(traceback.format_tb(error.__traceback__))
    logging.getLogger(__name__).error("%s: %s\n%s", where, type(error).__name__, place)
