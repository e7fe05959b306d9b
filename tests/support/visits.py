"""An open page as the server sees it: it sends requests and gets answers."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

from gradio.context import LocalContext

from vitviz.ui.handlers import Handlers
from vitviz.ui.pictures import upload_of
from vitviz.ui.runs import PageRuns, outcome
from vitviz.ui.state import PageState, View

Result = TypeVar("Result")
PAGE, OTHER_PAGE = "a" * 22, "b" * 22
STATE: Any = PageState((View(),)).to_json()


@cache
def event_loop() -> asyncio.AbstractEventLoop:
    """The event loop of a server, in a thread of its own."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    return loop


def on_loop(work: Coroutine[Any, Any, Result]) -> Result:
    """The result of a coroutine that runs there."""
    return asyncio.run_coroutine_threadsafe(work, event_loop()).result()


@contextmanager
def by_visitor(address: str) -> Iterator[None]:
    """Requests are those of a visitor of this address."""
    token = LocalContext.request.set(SimpleNamespace(client=SimpleNamespace(host=address)))  # type: ignore[arg-type]
    yield
    LocalContext.request.reset(token)


class Visit:
    """An open page."""

    def __init__(self, runs: PageRuns, page: str = PAGE) -> None:
        self.runs, self.page, self.number = runs, page, 0

    @property
    def handlers(self) -> Handlers:
        return self.runs.handlers

    def run(self, kind: str, **request: Any) -> dict[str, Any]:
        """Send the next request of the page, and return the reply."""
        self.number += 1
        reply: dict[str, Any] = self.lines(kind, **request)[-1]["reply"]
        return reply

    def lines(self, kind: str, **request: Any) -> list[dict[str, Any]]:
        """Everything that the server says of the page's current request."""

        lines = self.send({"page": self.page, "number": self.number, "kind": kind, **request})
        json.dumps(lines, allow_nan=False)
        return lines

    def send(self, request: Any) -> list[dict[str, Any]]:
        """Everything that the server says of a request, which may be any JSON."""

        async def read() -> list[dict[str, Any]]:
            return [line async for line in self.runs.lines(request)]

        return on_loop(read())

    def upload(self, path: Path, name: str = "") -> str:
        """The name of an uploaded picture in states."""
        return self.handlers.service.pictures.id(upload_of({"path": str(path), "orig_name": name}))

    def analyze(self, path: Path, name: str = "", state: Any = STATE, **request: Any) -> dict[str, Any]:
        """The reply about a state with an uploaded picture in its first view."""
        view = {**state["views"][0], "picture": self.upload(path, name)}
        return self.run("analyze", state={**state, "views": [view]}, index=0, is_new=True, **request)

    def end(self, **request: Any) -> None:
        """End the page's current run, or all of them."""

        async def end() -> None:
            self.runs.end({"page": self.page, **request})

        on_loop(end())

    def ask(self, name: str, /, **request: Any) -> dict[str, Any]:
        """What a function that answers at once says; a map as the reply of a run has it."""
        handlers = self.handlers

        async def respond() -> Any:
            if name == "describe":
                return handlers.describe(request)
            return await handlers.map(request)

        answer: Any = on_loop(outcome(name, respond()))
        if isinstance(answer, bytes):
            answer = {"content": base64.b64encode(answer).decode()}
        json.dumps(answer, allow_nan=False)
        return answer
