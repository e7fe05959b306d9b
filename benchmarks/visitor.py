"""A visitor of the app without a browser, who speaks the protocol of the page: one event and a few functions."""

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
# The longest silence of the server between two messages; it sends a heartbeat every 15 seconds.
SILENCE_SECONDS = 60.0
EXPLORER = "vv-explorer"


class VisitError(Exception):
    """The app returned an unexpected answer."""


class LimitReachedError(Exception):
    """The bound on requests or seconds is reached."""


@dataclass
class Traffic:
    """The requests of all visitors together, and their bounds.

    Args:
        address: of the app, without a trailing slash.
        most_requests: bound on the requests; one more raises :class:`LimitReachedError`.
        most_seconds: bound on the seconds since this object was created.
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
        """The address of the next visitor, a loopback address."""
        self.visitors += 1
        return f"127.1.{self.visitors // 256}.{self.visitors % 256}"

    def count(self) -> None:
        """Count one more request.

        Raises:
            LimitReachedError: a bound is reached.
        """
        self.requests += 1
        if self.requests > self.most_requests:
            raise LimitReachedError(f"{self.most_requests:,} requests are spent")
        if self.seconds > self.most_seconds:
            raise LimitReachedError(f"{self.most_seconds:g} seconds are spent")


class Visitor:
    """One open page: its session, and what it shows. Open one with :meth:`visiting`.

    Attributes:
        state: of the page.
        facts: of the analysis that it shows.
        models: facts of models, by their ids.
        seconds: from request to answer, by the kind of request.
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
        """Open a page, and close it at the end even if something still runs for it.

        Raises:
            VisitError: an answer is an error.
            LimitReachedError: a bound is reached.
        """
        # Connections are not reused: the app may close one just then, which a browser would handle and httpx does not.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        # The app trusts this header from a proxy on the same machine, so every visitor has their own address.
        headers = {"x-forwarded-for": traffic.next_address()}
        async with httpx.AsyncClient(
            base_url=traffic.address, timeout=httpx.Timeout(SILENCE_SECONDS), limits=limits, headers=headers
        ) as client:
            traffic.count()
            page = await client.get("/")
            traffic.count()
            config = await client.get("/config")
            for answer in (page, config):
                _raise_error(answer)
            visitor = cls(traffic, client, config.json())
            tasks = [asyncio.create_task(each()) for each in (visitor._stay, visitor._listen)]
            try:
                yield visitor
            finally:
                for task in tasks:
                    task.cancel()
                    with suppress(asyncio.CancelledError, VisitError, LimitReachedError, httpx.HTTPError):
                        await task

    async def analyze(self, *, upload: Any = None, own: Any = None, **view: Any) -> dict[str, Any]:
        """Analyse another picture, model or input, and show it.

        Args:
            upload: a picture, as :meth:`upload` returns it.
            own: a checkpoint: its ``files``, or its name on the ``hub``.
            view: other changes of the view, such as its ``model``.

        Raises:
            VisitError: it cannot be analysed; the message is the page's.
        """
        state = {**self.state, "views": [{**self.state["views"][0], **view}]}
        reply = await self.run("analyze", state=state, index=0, upload=upload, own=own)
        self.state, self.facts = reply["state"], reply["facts"]
        self.models |= reply["models"]
        return reply

    async def run(self, kind: str, **request: Any) -> dict[str, Any]:
        """The reply to a long request.

        Raises:
            VisitError: it failed, was stopped, or its analysis has expired.
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
        """The answer of one of the component's server functions."""
        body = {"data": request, "component_id": self.explorer["id"], "fn_name": function, "session_hash": self.session}
        answer: dict[str, Any] = (await self._post("component_server", body)).json()
        return answer

    async def upload(self, name: str, content: bytes) -> dict[str, Any]:
        """Upload a file; returns its description for a request."""
        self.traffic.count()
        answer = await self.client.post(f"{API}/upload", files={"files": (name, content)})
        _raise_error(answer)
        return {"path": answer.json()[0], "orig_name": name}

    async def fetch(self, path: str) -> bytes:
        """A file of the page."""
        self.traffic.count()
        answer = await self.client.get(f"{API}/file={path}")
        _raise_error(answer)
        return answer.content

    async def _post(self, path: str, body: dict[str, Any]) -> httpx.Response:
        self.traffic.count()
        answer = await self.client.post(f"{API}/{path}", json=body)
        _raise_error(answer)
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
        """Hold the connection that tells the app that the page is open."""
        self.traffic.count()
        silence = httpx.Timeout(SILENCE_SECONDS)
        async with self.client.stream("GET", f"{API}/heartbeat/{self.session}", timeout=silence) as answer:
            async for _ in answer.aiter_raw():
                pass

    async def _listen(self) -> None:
        """Read the answers of the queue from one stream for all events, which the app closes when none is pending."""
        try:
            while True:
                await self._waiting.wait()
                self._waiting.clear()
                if self._pending:
                    await self._take_answers()
                    # The answer to a request that was sent while the stream closed is in the next stream.
                    if self._pending:
                        self._waiting.set()
        except Exception as error:
            self._broken = error
            for answer in self._answers.values():
                if not answer.done():
                    answer.set_exception(error)

    async def _take_answers(self) -> None:
        self.traffic.count()
        params = {"session_hash": self.session}
        async with self.client.stream("GET", f"{API}/queue/data", params=params) as answer:
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
        # Nobody waits for this answer any more.
        if answer.cancelled():
            return
        if message["success"]:
            answer.set_result(message["output"])
        else:
            answer.set_exception(VisitError(f"an event failed: {message['output'].get('error')}"))


def _explorer(config: dict[str, Any]) -> dict[str, Any]:
    """The explorer component of the page.

    Raises:
        VisitError: there is none.
    """
    components = [component for component in config["components"] if component["props"].get("elem_id") == EXPLORER]
    if not components:
        raise VisitError(f"the page has no {EXPLORER!r}")
    explorer: dict[str, Any] = components[0]
    return explorer


def _raise_error(answer: httpx.Response) -> None:
    """Raise the error of an answer.

    Raises:
        VisitError: the answer is an error.
    """
    if answer.is_error:
        raise VisitError(f"{answer.request.method} {answer.request.url.path}: {answer.status_code} {answer.text[:200]}")
