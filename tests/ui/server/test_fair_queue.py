"""The queue of programs: at rest when idle, and one visitor's calls never take all places."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server_client import RunningApp, post, running_here
from tests.support.waiting import HANG_SECONDS, wait_until
from vitviz.errors.kinds import VitvizError
from vitviz.ui.api import Api
from vitviz.ui.progress_reports import Report
from vitviz.ui.records import OpenedRecord
from vitviz.ui.server.line import Line
from vitviz.ui.server.routes import EVENT_STREAM, JOIN


@pytest.mark.process
def test_an_app_that_nobody_uses_is_at_rest(served: RunningApp, monkeypatch: Any) -> None:
    looks = Counter[str]()
    queue = served.demo._queue
    # Apps of other tests in this process look, too.
    monkeypatch.setattr(type(queue), "__len__", lambda self: looks.update(["look"] if self is queue else []) or 0)
    start = time.monotonic()
    # On a busy machine it looks later, never more often.
    wait_until(lambda: looks["look"] >= 20)
    # A thousand times a second is what Gradio does by itself.
    assert time.monotonic() - start > 20 / 200


@pytest.mark.process
@pytest.mark.hostile
def test_after_one_who_calls_more_than_there_are_places_others_are_next(
    bundled: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked, inside, line = threading.Semaphore(0), Counter[str](), Line(places=3)

    async def open(self: Api, model: str | None = None) -> OpenedRecord:
        """Open.

        Args:
            model: a name

        Returns:
            facts
        """

        def work(report: Report) -> None:
            inside[str(model)] += 1
            if model == "slow":
                blocked.acquire(timeout=HANG_SECONDS)

        await line.run(work)
        raise VitvizError(f"called {model}")

    monkeypatch.setattr(Api, "open", open)
    with running_here(bundled, tmp_path, monkeypatch) as served:

        def ask(kind: str, session: str, address: str) -> int:
            body = {"data": [kind], "fn_index": served.endpoint("open")._id, "session_hash": session}
            return post(served.port, JOIN, json.dumps(body).encode(), f"X-Forwarded-For: {address}").status

        many = 30
        try:
            assert [ask("slow", f"slow{number}", "127.1.0.1") for number in range(many)] == [200] * many
            wait_until(lambda: inside["slow"] == 3)
            assert ask("quick", "quick", "127.1.0.2") == 200
            wait_until(lambda: len(line) == many + 1)
            blocked.release()
            url = f"{served.address}{EVENT_STREAM}?session_hash=quick"
            with httpx.stream("GET", url, headers={"X-Forwarded-For": "127.1.0.2"}, timeout=HANG_SECONDS) as answers:
                assert any("called quick" in text for text in answers.iter_lines())
        finally:
            blocked.release(many)
        wait_until(lambda: inside["slow"] == many)
