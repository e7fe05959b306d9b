"""Whose events begin: one visitor's never take all places."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from tests.server_client import RunningApp, post, running_here, wait_until
from vitviz.ui.api import LONG_CONCURRENCY as PLACES
from vitviz.ui.server.fair_queue import VISITORS_AT_ONCE, share_fairly
from vitviz.ui.server.routes import ANSWERS, JOIN


def queue_of(*addresses: str, limit: int | None = 6, running: tuple[str, ...] = ()) -> Any:
    """A queue as Gradio has it, with an event of each of these addresses."""

    def event(address: str) -> Any:
        return SimpleNamespace(
            request=SimpleNamespace(client=SimpleNamespace(host=address)), concurrency_id="long", address=address
        )

    waiting = SimpleNamespace(
        queue=[event(each) for each in addresses], concurrency_limit=limit, current_concurrency=len(running)
    )
    queue = SimpleNamespace(
        event_queue_per_concurrency_id={"long": waiting}, active_jobs=[*([event(each)] for each in running), None]
    )
    share_fairly(queue)
    return queue


def begun(queue: Any) -> str | None:
    found = queue.get_events()
    return None if found is None else found[0][0].address


def test_whoever_has_the_fewest_under_way_comes_first() -> None:
    queue = queue_of("10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.3", running=("10.0.0.1", "10.0.0.2"))
    assert begun(queue) == "10.0.0.3"
    # Of equally few, whoever came first.
    assert begun(queue_of("10.0.0.1", "10.0.0.2")) == "10.0.0.1"


def test_nobody_has_more_than_their_part_of_the_places() -> None:
    assert begun(queue_of("10.0.0.1", running=("10.0.0.1",))) == "10.0.0.1"
    assert begun(queue_of("10.0.0.1", running=("10.0.0.1",) * 2)) is None
    assert begun(queue_of("10.0.0.1", limit=1)) == "10.0.0.1"
    assert begun(queue_of("10.0.0.1", limit=None, running=("10.0.0.1",) * 50)) == "10.0.0.1"


def test_no_more_begin_than_there_are_places() -> None:
    assert begun(queue_of("10.0.0.9", running=tuple(f"10.0.0.{number}" for number in range(6)))) is None
    assert begun(queue_of()) is None


@pytest.fixture
def served(bundled: Any, tmp_path_factory: pytest.TempPathFactory, monkeypatch: Any) -> Iterator[RunningApp]:
    with running_here(bundled, tmp_path_factory.mktemp("queue"), monkeypatch) as found:
        yield found


@pytest.mark.process
def test_an_app_that_nobody_uses_is_at_rest(served: RunningApp, monkeypatch: Any) -> None:
    looks = Counter[str]()
    queue = served.demo._queue
    # Apps of other tests in this process look, too.
    monkeypatch.setattr(type(queue), "__len__", lambda self: looks.update(["look"] if self is queue else []) or 0)
    start = time.monotonic()
    # On a busy machine it looks later, never more often.
    while looks["look"] < 20:
        assert time.monotonic() - start < 60
        time.sleep(0.01)
    # A thousand times a second is what Gradio does by itself.
    assert time.monotonic() - start > 20 / 200


@pytest.mark.process
@pytest.mark.hostile
def test_who_asks_for_more_than_there_are_places_holds_up_nobody_else(served: RunningApp, monkeypatch: Any) -> None:
    blocked, inside = threading.Event(), Counter[str]()
    [endpoint] = [fn for fn in served.demo.fns.values() if fn.api_name == "analyze"]

    def answer(image: Any, model: str = "", fit: Any = None, resolution: Any = None) -> dict[str, Any]:
        inside[model] += 1
        if model == "slow":
            blocked.wait(60)
        return {"kind": model}

    monkeypatch.setattr(endpoint, "fn", answer)
    picture = httpx.post(f"{served.address}/upload?name=a.png", content=b"x", timeout=60).json()

    def ask(kind: str, session: str, address: str) -> int:
        body = {"data": [picture, kind, None, None], "fn_index": endpoint._id, "session_hash": session}
        return post(served.port, JOIN, json.dumps(body).encode(), f"X-Forwarded-For: {address}").status

    try:
        assert [ask("slow", f"slow{number}", "127.1.0.1") for number in range(PLACES + 6)] == [200] * (PLACES + 6)
        wait_until(lambda: inside["slow"] == PLACES // VISITORS_AT_ONCE)
        assert ask("quick", "quick", "127.1.0.2") == 200
        url = f"{served.address}{ANSWERS}?session_hash=quick"
        with httpx.stream("GET", url, headers={"X-Forwarded-For": "127.1.0.2"}, timeout=20) as answers:
            assert any('"kind":"quick"' in line for line in answers.iter_lines())
        assert inside["slow"] == PLACES // VISITORS_AT_ONCE
    finally:
        blocked.set()
    wait_until(lambda: inside["slow"] == PLACES + 6, 30)
