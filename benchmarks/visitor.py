"""A visitor of the app without a browser, who sends the requests of the page."""

from __future__ import annotations

import json
import re
import secrets
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import httpx

API = "/gradio_api"
# The longest silence of the server, which sends a line every 15 seconds.
SILENCE_SECONDS = 60.0


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
        network: the first half of the visitors' addresses.
    """

    address: str
    most_requests: int
    most_seconds: float
    network: str = "127.1"
    requests: int = 0
    visitors: int = 0
    started: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    def next_address(self) -> str:
        """The address of the next visitor, a loopback address."""
        self.visitors += 1
        return f"{self.network}.{self.visitors // 256}.{self.visitors % 256}"

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
    """One open page, and what it shows. Open one with :meth:`visiting`.

    Attributes:
        address: of the visitor, on this machine.
        state: of the page.
        facts: of the analysis that it shows.
        models: facts of models, by their ids.
        seconds: from request to answer, by the kind of request.
    """

    def __init__(self, traffic: Traffic, client: httpx.AsyncClient, address: str, start: dict[str, Any]) -> None:
        self.traffic, self.client, self.address = traffic, client, address
        self.page, self.number = secrets.token_urlsafe(16), 0
        self.state: dict[str, Any] = start["state"]
        self.facts: dict[str, Any] = start["views"][0]
        self.models: dict[str, Any] = start["models"]
        self.seconds: defaultdict[str, list[float]] = defaultdict(list)

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
        address = traffic.next_address()
        async with httpx.AsyncClient(
            base_url=traffic.address,
            timeout=httpx.Timeout(SILENCE_SECONDS),
            limits=limits,
            headers={"x-forwarded-for": address},
        ) as client:
            traffic.count()
            page = await client.get("/")
            visitor = cls(traffic, client, address, start_of(page.text))
            try:
                yield visitor
            finally:
                with suppress(LimitReachedError, httpx.HTTPError, VisitError):
                    await visitor.post("end", {"page": visitor.page})

    async def analyze(self, *, upload: Any = None, own: Any = None, **view: Any) -> dict[str, Any]:
        """Analyse another picture, model or input, and show it.

        Args:
            upload: a picture, as :meth:`upload` returns it.
            own: a checkpoint: its ``files``, or its name on the ``hub``.
            view: other changes of the view, such as its ``model``.

        Raises:
            VisitError: it cannot be analysed; the message is the page's.
        """
        picture = {} if upload is None else {"picture": upload["picture"]}
        state = {**self.state, "views": [{**self.state["views"][0], **picture, **view}]}
        reply = await self.run("analyze", state=state, index=0, is_new=upload is not None, own=own)
        self.state, self.facts = reply["state"], reply["views"][0]
        self.models |= reply["models"]
        return reply

    async def run(self, kind: str, **request: Any) -> dict[str, Any]:
        """The reply to a long request.

        Raises:
            VisitError: it failed, was stopped, or its analysis has expired.
        """
        self.number += 1
        started = time.monotonic()
        answer = await self.post("run", {"page": self.page, "number": self.number, "kind": kind, **request})
        self.seconds[kind].append(time.monotonic() - started)
        reply: dict[str, Any] = json.loads(answer.text.splitlines()[-1])["reply"]
        for name in ("failed", "stopped", "expired"):
            if name in reply:
                raise VisitError(f"{kind}: {name} {reply[name]}")
        return reply

    async def upload(self, name: str, content: bytes) -> dict[str, Any]:
        """Upload a file; returns its description for a request."""
        answer = await self._request("POST", "/upload", params={"name": name}, content=content)
        return {**answer.json(), "orig_name": name}

    async def file(self, name: str) -> bytes | None:
        """A file of the analysis that the page shows; None if the analysis has expired."""
        answer = await self._request("GET", f"/files/{self.facts['uid']}/{name}")
        return None if answer.status_code == httpx.codes.GONE else answer.content

    async def post(self, path: str, body: dict[str, Any]) -> httpx.Response:
        """The answer to a request of the page."""
        return await self._request("POST", f"/{path}", json=body)

    async def send(self, path: str, content: Any, kind: str) -> None:
        """A body as it is, of which any answer will do."""
        self.traffic.count()
        await self.client.post(path, content=content, headers={"content-type": kind})

    async def _request(self, method: str, path: str, **content: Any) -> httpx.Response:
        """The answer to a request.

        Raises:
            VisitError: it is an error, other than that something has expired.
        """
        self.traffic.count()
        answer = await self.client.request(method, path, **content)
        if answer.is_error and answer.status_code != httpx.codes.GONE:
            raise VisitError(f"{method} {answer.request.url.path}: {answer.status_code} {answer.text[:200]}")
        return answer


def start_of(page: str) -> dict[str, Any]:
    """What a page begins with.

    Raises:
        VisitError: the page has nothing of the kind.
    """
    block = re.search(r'<script type="application/json" id="start">([^<]*)</script>', page)
    if block is None:
        raise VisitError("the page does not say what it begins with")
    start: dict[str, Any] = json.loads(block[1])
    return start
