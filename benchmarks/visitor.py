"""A visitor of the app without a browser, who sends the requests of the page."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from multiprocessing.synchronize import Semaphore
from typing import Any

import httpx

API = "/gradio_api"


class VisitError(Exception):
    """The app returned an unexpected answer."""


class LimitReachedError(Exception):
    """The bound on requests is reached."""


@dataclass
class Traffic:
    """Where visitors come from, and how many requests they may make.

    Args:
        address: of the app, without a trailing slash.
        requests: what is left of the requests of all processes; one more raises :class:`LimitReachedError`.
        network: the first half of the visitors' addresses.
        visitors: how many have come.
    """

    address: str
    requests: Semaphore
    network: str = "127.1"
    visitors: int = 0

    async def count(self, request: object = None) -> None:
        """Count one more request.

        Raises:
            LimitReachedError: none is left.
        """
        if not self.requests.acquire(block=False):
            raise LimitReachedError("all requests are spent")


class Visitor:
    """One open page, and what it shows. Open one with :meth:`visiting`.

    Attributes:
        client: sends the visitor's requests.
        address: of the visitor, on this machine.
        state: of the page.
        facts: of the analysis that it shows.
    """

    def __init__(self, traffic: Traffic, client: httpx.AsyncClient, address: str, start: dict[str, Any]) -> None:
        self.traffic, self.client, self.address = traffic, client, address
        self.page, self.number = secrets.token_urlsafe(16), 0
        self.state: dict[str, Any] = start["state"]
        self.facts: dict[str, Any] = start["views"][0]

    @classmethod
    @asynccontextmanager
    async def visiting(cls, traffic: Traffic) -> AsyncIterator[Visitor]:
        """Open a page, and close it at the end even if something still runs for it.

        Raises:
            VisitError: an answer is an error.
            LimitReachedError: the bound is reached.
        """
        traffic.visitors += 1
        address = f"{traffic.network}.{traffic.visitors // 256}.{traffic.visitors % 256}"
        async with httpx.AsyncClient(
            base_url=traffic.address,
            # Of silence: the server sends a line every 15 seconds.
            timeout=60.0,
            # It reads no certificates, which would take longer than many a request.
            verify=False,
            # Not reused: the app may close one just then, which a browser would handle and httpx does not.
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
            # The app trusts this header from a proxy on the same machine, so every visitor has their own address.
            headers={"x-forwarded-for": address},
            event_hooks={"request": [traffic.count]},
        ) as client:
            visitor = cls(traffic, client, address, start_of((await client.get("/")).text))
            try:
                yield visitor
            finally:
                with suppress(LimitReachedError, httpx.HTTPError, VisitError):
                    await visitor.request("POST", "/end", json={"page": visitor.page})

    async def analyze(self, *, upload: Any = None, **view: Any) -> None:
        """Analyse another picture, model or input, and show it.

        Args:
            upload: a picture, as :meth:`upload` returns it.
            view: other changes of the view, such as its ``resolution``.

        Raises:
            VisitError: it cannot be analysed; the message is the page's.
        """
        picture = {} if upload is None else {"picture": upload["picture"]}
        state = {**self.state, "views": [{**self.state["views"][0], **picture, **view}]}
        reply = await self.run("analyze", state=state, index=0, is_new=upload is not None)
        self.state, self.facts = reply["state"], reply["views"][0]

    async def run(self, kind: str, **request: Any) -> dict[str, Any]:
        """The reply to a long request.

        Raises:
            VisitError: it failed, was stopped, or its analysis has expired.
        """
        self.number += 1
        body = {"page": self.page, "number": self.number, "kind": kind, **request}
        answer = await self.request("POST", "/run", json=body)
        reply: dict[str, Any] = json.loads(answer.text.splitlines()[-1])["reply"]
        for name in {"failed", "stopped", "expired"} & reply.keys():
            raise VisitError(f"{kind}: {name} {reply[name]}")
        return reply

    async def upload(self, name: str, content: bytes) -> dict[str, Any]:
        """Upload a file; returns its description for a request."""
        answer = await self.request("POST", "/upload", params={"name": name}, content=content)
        return {**answer.json(), "orig_name": name}

    async def file(self, name: str) -> bytes:
        """A file of the analysis that the page shows."""
        return (await self.request("GET", f"/files/{self.facts['uid']}/{name}")).content

    async def request(self, method: str, path: str, **content: Any) -> httpx.Response:
        """The answer to a request.

        Raises:
            VisitError: it is an error, such as that an analysis has expired.
        """
        answer = await self.client.request(method, path, **content)
        if answer.is_error:
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
