"""A visitor of the app without a browser: it speaks the page's own protocol, one event and a few functions."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import httpx

API = "/gradio_api"
# What the server may take between two messages; it sends a sign of life every 15 seconds.
SILENCE = 60.0
EXPLORER = "vv-explorer"


class VisitError(Exception):
    """The app answered what no page expects."""


class OverBoundError(Exception):
    """The requests or the seconds that were allowed are spent."""


@dataclass
class Traffic:
    """All visitors' requests together, within their bounds.

    Args:
        address: of the app, without a slash at its end.
        most_requests: beyond which there is an :class:`OverBoundError`.
        most_seconds: since this was made.
    """

    address: str
    most_requests: int
    most_seconds: float
    requests: int = 0
    visitors: int = 0
    started: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    def next_address(self) -> str:
        """The address of the next visitor, among those of this machine."""
        self.visitors += 1
        return f"127.1.{self.visitors // 256}.{self.visitors % 256}"

    def count(self) -> None:
        """One more request.

        Raises:
            OverBoundError: there may be no more.
        """
        self.requests += 1
        if self.requests > self.most_requests:
            raise OverBoundError(f"{self.most_requests:,} requests are spent")
        if self.seconds > self.most_seconds:
            raise OverBoundError(f"{self.most_seconds:g} seconds are spent")


class Visitor:
    """One open page: its session, and what it shows. Make one with :meth:`visiting`.

    Attributes:
        state: of the page.
        facts: of the analysis that it shows.
        models: what is known of models, by their ids.
        seconds: from asking to the answer, by the kind of request.
    """

    def __init__(self, traffic: Traffic, client: httpx.AsyncClient, config: dict[str, Any]) -> None:
        self.traffic, self.client = traffic, client
        self.session, self.page, self.number = secrets.token_hex(8), secrets.token_urlsafe(16), 0
        self.explorer = _explorer(config)
        target = [self.explorer["id"], "run"]
        self.event = next(each["id"] for each in config["dependencies"] if target in each["targets"])
        first = self.explorer["props"]["value"]
        self.state: dict[str, Any] = first["state"]
        self.facts: dict[str, Any] = first["views"][0]
        self.models: dict[str, Any] = first["models"]
        self.seconds: defaultdict[str, list[float]] = defaultdict(list)
        self._answers: defaultdict[str, asyncio.Future[dict[str, Any]]] = defaultdict(asyncio.Future)
        self._pending, self._waiting = 0, asyncio.Event()
        self._broken: Exception | None = None

    @classmethod
    @asynccontextmanager
    async def visiting(cls, traffic: Traffic) -> AsyncIterator[Visitor]:
        """A page that is opened, and left at the end, whatever runs for it then.

        Raises:
            VisitError: an answer is an error.
            OverBoundError: it may not ask any more.
        """
        # None is kept for later: the app may close it just when it is used again, which a browser puts up with.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        # As a proxy on this machine says it, whom the app believes: everybody comes from an address of their own.
        headers = {"x-forwarded-for": traffic.next_address()}
        async with httpx.AsyncClient(
            base_url=traffic.address, timeout=httpx.Timeout(SILENCE), limits=limits, headers=headers
        ) as client:
            traffic.count()
            page = await client.get("/")
            traffic.count()
            config = await client.get("/config")
            for answer in (page, config):
                _refuse(answer)
            visitor = cls(traffic, client, config.json())
            tasks = [asyncio.create_task(each()) for each in (visitor._stay, visitor._listen)]
            try:
                yield visitor
            finally:
                for task in tasks:
                    task.cancel()
                    with suppress(asyncio.CancelledError, VisitError, OverBoundError, httpx.HTTPError):
                        await task

    async def analyze(self, *, upload: Any = None, own: Any = None, **view: Any) -> dict[str, Any]:
        """Have another picture, model or input analysed, and show it.

        Args:
            upload: a picture, as :meth:`upload` gives it.
            own: a checkpoint: its ``files``, or its name on the ``hub``.
            view: what else changes in the view, such as its ``model``.

        Raises:
            VisitError: it cannot be analysed; the message is the page's.
        """
        state = {**self.state, "views": [{**self.state["views"][0], **view}]}
        reply = await self.run("analyze", state=state, index=0, upload=upload, own=own)
        self.state, self.facts = reply["state"], reply["facts"]
        self.models |= reply["models"]
        return reply

    async def run(self, kind: str, **request: Any) -> dict[str, Any]:
        """The reply to a request for what takes long.

        Raises:
            VisitError: it failed, was stopped, or is about what is not kept any more.
        """
        self.number += 1
        body = {
            "data": [],
            "event_data": {"page": self.page, "number": self.number, "kind": kind, **request},
            "fn_index": self.event,
            "trigger_id": self.explorer["id"],
            "session_hash": self.session,
        }
        started = time.monotonic()
        reply: dict[str, Any] = (await self._queued(body))["data"][0]
        self.seconds[kind].append(time.monotonic() - started)
        for name in ("failed", "stopped", "expired"):
            if name in reply:
                raise VisitError(f"{kind}: {name} {reply[name]}")
        return reply

    async def ask(self, function: str, **request: Any) -> dict[str, Any]:
        """What the page is answered at once."""
        body = {"data": request, "component_id": self.explorer["id"], "fn_name": function, "session_hash": self.session}
        found: dict[str, Any] = (await self._post("component_server", body)).json()
        return found

    async def upload(self, name: str, content: bytes) -> dict[str, Any]:
        """Hand over a file; returns it as a request names it."""
        self.traffic.count()
        answer = await self.client.post(f"{API}/upload", files={"files": (name, content)})
        _refuse(answer)
        return {"path": answer.json()[0], "orig_name": name}

    async def fetch(self, path: str) -> bytes:
        """A file of the page."""
        self.traffic.count()
        answer = await self.client.get(f"{API}/file={path}")
        _refuse(answer)
        return answer.content

    async def _post(self, way: str, body: dict[str, Any]) -> httpx.Response:
        self.traffic.count()
        answer = await self.client.post(f"{API}/{way}", json=body)
        _refuse(answer)
        return answer

    async def _queued(self, body: dict[str, Any]) -> dict[str, Any]:
        self._pending += 1
        try:
            event = (await self._post("queue/join", body)).json()["event_id"]
            self._waiting.set()
            if self._broken is not None:
                raise self._broken
            return await self._answers[event]
        finally:
            self._pending -= 1

    async def _stay(self) -> None:
        """The connection by which the app knows that the page is open."""
        self.traffic.count()
        silence = httpx.Timeout(SILENCE)
        async with self.client.stream("GET", f"{API}/heartbeat/{self.session}", timeout=silence) as answer:
            async for _ in answer.aiter_raw():
                pass

    async def _listen(self) -> None:
        """Take the answers of the queue: one stream for all events, which the app closes when none is left."""
        try:
            while True:
                await self._waiting.wait()
                self._waiting.clear()
                if self._pending:
                    await self._take_answers()
                    # One that was asked for while the stream was closed has its answer in the next.
                    if self._pending:
                        self._waiting.set()
        except Exception as error:
            self._broken = error
            for answer in self._answers.values():
                if not answer.done():
                    answer.set_exception(error)

    async def _take_answers(self) -> None:
        self.traffic.count()
        where = {"session_hash": self.session}
        async with self.client.stream("GET", f"{API}/queue/data", params=where) as answer:
            async for line in answer.aiter_lines():
                if not line.startswith("data:"):
                    continue
                message = json.loads(line.removeprefix("data:"))
                if message["msg"] == "close_stream":
                    return
                if message["msg"] == "unexpected_error":
                    raise VisitError(f"the queue says: {message.get('message')}")
                if message["msg"] == "process_completed":
                    self._answer(message)

    def _answer(self, message: dict[str, Any]) -> None:
        answer = self._answers[message["event_id"]]
        # Whoever asked does not wait any more.
        if answer.cancelled():
            return
        if message["success"]:
            answer.set_result(message["output"])
        else:
            answer.set_exception(VisitError(f"an event failed: {message['output'].get('error')}"))


def _explorer(config: dict[str, Any]) -> dict[str, Any]:
    """The component of the page.

    Raises:
        VisitError: there is none.
    """
    found = [part for part in config["components"] if part["props"].get("elem_id") == EXPLORER]
    if not found:
        raise VisitError(f"the page has no {EXPLORER!r}")
    explorer: dict[str, Any] = found[0]
    return explorer


def _refuse(answer: httpx.Response) -> None:
    """Every error of the app is one of the visit.

    Raises:
        VisitError: the answer is an error.
    """
    if answer.is_error:
        raise VisitError(f"{answer.request.method} {answer.request.url.path}: {answer.status_code} {answer.text[:200]}")
