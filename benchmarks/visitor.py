"""A visitor of the app without a browser: it speaks the page's own protocol, and knows its parts by their names."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import httpx

API = "/gradio_api"
# What the server may take between two messages; it sends a sign of life every 15 seconds.
SILENCE = 60.0
# What "the value of this component stays" looks like.
SKIPPED = {"__type__": "update"}


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
    """One open page: its session, the values of its components, and the events that follow from each other.

    Make one with :meth:`visiting`.
    """

    def __init__(self, traffic: Traffic, client: httpx.AsyncClient, config: dict[str, Any]) -> None:
        self.traffic, self.client = traffic, client
        self.session = secrets.token_hex(8)
        self.components = {part["id"]: part for part in config["components"]}
        self.values = {key: _first_value(part) for key, part in self.components.items()}
        self.dependencies: list[dict[str, Any]] = config["dependencies"]
        # Seconds from asking to the answer, by the event's number.
        self._taken: defaultdict[int, list[float]] = defaultdict(list)
        self._answers: defaultdict[str, asyncio.Future[dict[str, Any]]] = defaultdict(asyncio.Future)
        self._pending, self._waiting = 0, asyncio.Event()
        self._broken: Exception | None = None
        self._running: set[int] = set()
        self._again: set[int] = set()

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

    def part(self, name: str) -> int:
        """The number of the component with this id in the page.

        Raises:
            VisitError: there is none.
        """
        found = [key for key, part in self.components.items() if part["props"].get("elem_id") == name]
        if not found:
            raise VisitError(f"the page has no {name!r}")
        return found[0]

    def value(self, name: str) -> Any:
        return self.values[self.part(name)]

    def seconds(self, name: str, event: str, shown: str) -> list[float]:
        """From asking to the answer, of all events of a component that have changed another one."""
        key = self.part(shown)
        return [
            each for one in self._of(self.part(name), event) if key in one["outputs"] for each in self._taken[one["id"]]
        ]

    async def open(self) -> None:
        """What a page does once it is there."""
        await self._fire_all(self._of(None, "load"))

    async def set(self, name: str, value: Any, event: str = "change") -> None:
        """Change a component as a hand does, and wait until all that follows is there."""
        key = self.part(name)
        self.values[key] = value
        await self._fire_all(self._of(key, event))

    async def click(self, name: str) -> None:
        await self._fire_all(self._of(self.part(name), "click"))

    async def trigger(self, name: str, event: str) -> None:
        await self._fire_all(self._of(self.part(name), event))

    async def upload(self, name: str, content: bytes) -> dict[str, Any]:
        """Hand over a file; returns it as a component takes it."""
        self.traffic.count()
        answer = await self.client.post(f"{API}/upload", files={"files": (name, content)})
        _refuse(answer)
        about = {"orig_name": name, "size": len(content), "meta": {"_type": "gradio.FileData"}}
        return {"path": answer.json()[0], **about}

    async def ask(self, name: str, function: str, said: Any) -> Any:
        """What a component's function on the server answers."""
        body = {"data": said, "component_id": self.part(name), "fn_name": function, "session_hash": self.session}
        return (await self._post("component_server", body)).json()

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

    def _of(self, key: int | None, event: str) -> list[dict[str, Any]]:
        """The events of a component; of the page itself where there is none."""
        return [each for each in self.dependencies if any(self._is(key, event, *target) for target in each["targets"])]

    def _is(self, key: int | None, event: str, target: int | None, target_event: str) -> bool:
        at_page = key is None and target not in self.components
        return target_event == event and (at_page or target == key)

    async def _fire_all(self, dependencies: list[dict[str, Any]]) -> None:
        await asyncio.gather(*(self._fire(each) for each in dependencies))

    async def _fire(self, dependency: dict[str, Any]) -> None:
        """An event and what follows from it. One that is asked for again while it runs, runs once more at most."""
        number = dependency["id"]
        if number in self._running:
            if dependency["trigger_mode"] == "always_last":
                self._again.add(number)
            return
        self._running.add(number)
        try:
            changed = await self._run(dependency) if dependency["backend_fn"] else []
        finally:
            self._running.discard(number)
        following = [each for each in self.dependencies if each["trigger_after"] == number]
        following += [each for key in changed for each in self._of(key, "change")]
        if number in self._again:
            self._again.discard(number)
            following.append(dependency)
        await self._fire_all(list({each["id"]: each for each in following}.values()))

    async def _run(self, dependency: dict[str, Any]) -> list[int]:
        """The components whose value an event has changed."""
        body = {
            "data": [self.values[key] for key in dependency["inputs"]],
            "event_data": None,
            "fn_index": dependency["id"],
            "trigger_id": None,
            "session_hash": self.session,
        }
        started = time.monotonic()
        if dependency["queue"]:
            output = await self._queued(body)
        else:
            output = (await self._post(f"run/{dependency['api_name']}", body)).json()
        self._taken[dependency["id"]].append(time.monotonic() - started)
        changed = [*self._take(dependency["outputs"], output["data"]), *(output.get("changed_state_ids") or ())]
        return list(dict.fromkeys(changed))

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

    def _take(self, outputs: list[int], data: list[Any]) -> Iterator[int]:
        for key, said in zip(outputs, data, strict=True):
            is_update = isinstance(said, dict) and said.get("__type__") == "update"
            if self.components[key]["type"] == "state" or said == SKIPPED or (is_update and "value" not in said):
                continue
            value = said["value"] if is_update else said
            if value != self.values[key]:
                self.values[key] = value
                yield key

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
        if message["success"]:
            answer.set_result(message["output"])
        else:
            answer.set_exception(VisitError(f"an event failed: {message['output'].get('error')}"))


def _first_value(component: dict[str, Any]) -> Any:
    if component["type"] == "state":
        return None
    value = component["props"].get("value")
    return "" if value is None and component["type"] == "textbox" else value


def _refuse(answer: httpx.Response) -> None:
    """Every error of the app is one of the visit.

    Raises:
        VisitError: the answer is an error.
    """
    if answer.is_error:
        raise VisitError(f"{answer.request.method} {answer.request.url.path}: {answer.status_code} {answer.text[:200]}")
