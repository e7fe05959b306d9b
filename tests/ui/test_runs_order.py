"""One run of a page at a time, lost connections, and requests that are hostile or fail."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.visits import OTHER_PAGE, PAGE, STATE, Visit, by_visitor, event_loop, on_loop
from tests.support.waiting import HANG_SECONDS, LOOK_SECONDS, LoopClock, wait_until
from vitviz.errors.kinds import MethodError
from vitviz.ui import handlers as handlers_module
from vitviz.ui import runs as runs_module
from vitviz.ui.progress_reports import ProgressReport
from vitviz.ui.server.bodies import RequestError
from vitviz.ui.server.log import INTERNAL_ERROR
from vitviz.ui.server.rule import UnderWay
from vitviz.ui.service import AnalysisService

LONG_SECONDS = 600.0


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run goes on, and a reply is kept, for longer than any test takes."""
    monkeypatch.setattr(runs_module, "GRACE_SECONDS", LONG_SECONDS)


# ---- one at a time ----


class Held:
    """A kind of request that goes on until it is let go."""

    def __init__(self, visit: Visit) -> None:
        self.begun, self.release, self.count = threading.Event(), threading.Event(), 0
        self.replies: list[dict[str, Any]] = []
        self.line = visit.handlers.service.long
        visit.handlers.kinds["map"] = self

    async def __call__(self, request: Mapping[str, Any], report: Callable[[ProgressReport], None]) -> dict[str, Any]:
        return await self.line.run(lambda _: self.hold(report))

    def hold(self, report: Callable[[ProgressReport], None]) -> dict[str, Any]:
        self.count += 1
        self.begun.set()
        while not self.release.wait(LOOK_SECONDS):
            report(ProgressReport("Working", 4, 7))
        return {"path": "done"}


def started(visit: Visit) -> tuple[Held, threading.Thread]:
    """A run that has begun, and who reads it."""
    held = Held(visit)
    thread = threading.Thread(target=lambda: held.replies.append(visit.run("map")), daemon=True)
    thread.start()
    assert held.begun.wait(HANG_SECONDS)
    return held, thread


def test_progress_comes_before_the_reply_and_another_connection_reads_on(visit: Visit) -> None:
    (held, thread), seen = started(visit), list[dict[str, Any]]()

    async def read() -> None:
        async for line in visit.runs.lines({"page": PAGE, "number": visit.number, "kind": "map"}):
            seen.append(line)

    again = threading.Thread(target=lambda: on_loop(read()), daemon=True)
    again.start()
    wait_until(lambda: seen)
    held.release.set()
    thread.join(HANG_SECONDS)
    again.join(HANG_SECONDS)
    [*progress, reply] = seen
    assert progress == [{"text": "Working", "done": 4, "total": 7, "unfinished": None}]
    assert reply == {"reply": {"path": "done"}} and held.replies == [{"path": "done"}]
    # The reply is kept for a while.
    assert visit.lines("map") == [reply]


def test_a_newer_request_supersedes_the_one_before(visit: Visit) -> None:
    held, thread = started(visit)
    assert "expired" in Visit(visit.runs, OTHER_PAGE).run("rank")
    assert thread.is_alive()
    newer = visit.run("rank", uid=3)
    thread.join(HANG_SECONDS)
    assert not thread.is_alive()
    assert held.replies == [{"stopped": True}] and "expired" in newer
    # One that arrives late is not begun.
    visit.number = 0
    assert visit.run("map") == {"stopped": True}


@pytest.mark.parametrize("which", [{}, {"number": 1}])
def test_a_page_that_closes_ends_its_runs(visit: Visit, which: dict[str, int]) -> None:
    """Or one of them."""
    held, thread = started(visit)
    Visit(visit.runs, OTHER_PAGE).end(**which)
    visit.end(number=9)
    assert not any(run.is_ended for run in visit.runs._runs.values() if run.task)
    visit.end(**which)
    thread.join(HANG_SECONDS)
    assert held.replies == [{"stopped": True}]
    # One that was ended before it begins is not begun, and the next one is.
    visit.number = 8
    held.release.set()
    assert [visit.run("map") for _ in range(2)] == [{"stopped": True}, {"path": "done"}]


def test_a_lost_connection_ends_a_run_after_a_while(visit: Visit, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, held, request = LoopClock(event_loop(), monkeypatch), Held(visit), {"page": PAGE, "number": 1, "kind": "map"}

    async def leave_at_once() -> None:
        lines = visit.runs.lines(request)
        await anext(lines)
        await lines.aclose()

    # Back in time, it is the same run.
    for _ in range(2):
        on_loop(leave_at_once())
        assert held.begun.wait(HANG_SECONDS) and len(held.line) == 1

    def is_forgotten() -> bool:
        clock.advance(LONG_SECONDS)
        return len(held.line) == len(visit.runs) == 0

    wait_until(is_forgotten)
    assert held.count == 1


def test_one_visitor_has_so_many_runs(visit: Visit) -> None:
    """Those who wait for one take none of others, and too many are refused."""
    held = Held(visit)
    visit.handlers.service.under_way = UnderWay(at_once=4, most=8)
    pages = [Visit(visit.runs, f"{number:x>22}") for number in range(8)]
    threads = [threading.Thread(target=lambda page=page: held.replies.append(page.run("map"))) for page in pages]  # type: ignore[misc]
    for thread in threads:
        thread.start()
    assert held.begun.wait(HANG_SECONDS)
    # As many as there are places for long work.
    wait_until(lambda: len(visit.runs) == len(pages) and held.count == 2)
    with pytest.raises(RequestError, match="wait for them"):
        visit.run("map")
    with by_visitor("127.0.0.9"):
        assert "expired" in Visit(visit.runs, OTHER_PAGE).run("rank")
    held.release.set()
    for thread in threads:
        thread.join(HANG_SECONDS)
    assert held.replies == [{"path": "done"}] * len(pages)


def test_an_analysis_ends_between_two_layers(visit: Visit, service: AnalysisService) -> None:
    def stop_at(state: Any) -> None:
        if isinstance(state, ProgressReport) and state.done == 1:
            visit.end(number=1)

    analyze = service.analyze

    def watched(*arguments: Any, report: Any, **named: Any) -> Any:
        return analyze(*arguments, report=lambda state: (stop_at(state), report(state))[1], **named)

    service.analyze = watched  # type: ignore[method-assign]
    assert visit.run("analyze", state=STATE, index=0)["stopped"] is True
    wait_until(lambda: not len(service.short))
    assert len(service.cache) == 0


# ---- hostile requests, and failures ----

LEAVES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.just([[0, 0]]))
JSON = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner))
NAMES = ["page", "number", "kind", "state", "index", "is_new", "own", "link", "uid", "uids", "method", "parameters"]
NAMES += ["target", "heads", "patches", "name"]


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_request_is_answered_in_words(visit: Visit, uid: str, data: st.DataObject) -> None:
    request: Any = data.draw(st.dictionaries(st.sampled_from(NAMES), JSON, max_size=5) | JSON)
    plain = {"page": PAGE, "uid": uid, "method": "rollout", "state": STATE, "index": 0, "target": 1, "uids": [uid]}
    if isinstance(request, dict) and data.draw(st.booleans()):
        visit.number += 1
        request = {**plain, "number": visit.number, **request}
        request["kind"] = data.draw(st.sampled_from([*visit.handlers.kinds, "x"]))
        if request["kind"] == "compare":
            # Of every method, which takes its time.
            request["uid"] = "gone"
    with suppress(MethodError):
        assert INTERNAL_ERROR not in visit.send(request)[-1]["reply"].values()
    for name in ("map", "describe"):
        if isinstance(request, dict):
            assert INTERNAL_ERROR not in visit.ask(name, **request).values(), name


def test_what_is_no_envelope_is_refused(visit: Visit) -> None:
    good = {"page": PAGE, "number": 1, "kind": "open", "link": ""}
    bad: list[Any] = [None, [], "x", {}, {**good, "page": "short"}, {**good, "page": 3}, {**good, "number": -1}]
    bad += [{**good, "number": True}, {**good, "number": "1"}, {**good, "number": 10**300}]
    for request in bad:
        with pytest.raises(MethodError, match="expected"):
            visit.send(request)
    with pytest.raises(MethodError, match="kind = '__class__': expected 'open', 'analyze'"):
        visit.send({**good, "kind": "__class__"})
    assert len(visit.runs) == 0


def test_what_nobody_expected_is_one_sentence_and_the_log_has_nothing_of_the_visitor(
    visit: Visit, uid: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    secret = "a visitor's own words"

    def broken(*given: Any) -> Any:
        raise RuntimeError(secret)

    async def fails(*given: Any) -> Any:
        broken()

    visit.handlers.kinds["rank"] = fails
    with caplog.at_level(logging.ERROR):
        assert visit.run("rank", uid=uid)["failed"] == INTERNAL_ERROR
        monkeypatch.setattr(handlers_module, "as_python", broken)
        assert visit.ask("describe", state=STATE, uids=[uid]) == {"failed": INTERNAL_ERROR}
    assert "RuntimeError" in caplog.text and " broken > " in caplog.text and secret not in caplog.text
    # The next one is answered.
    assert "content" in visit.run("map", uid=uid, method="relevance")


def test_a_picture_that_is_none_fails_in_words(visit: Visit, tmp_path: Path) -> None:
    (tmp_path / "bad.png").write_bytes(b"<html>")
    assert visit.analyze(tmp_path / "bad.png", "bad.png")["failed"].startswith("bad.png: ")
    with pytest.raises(MethodError):
        on_loop(visit.handlers.change_view({"state": STATE, "index": 1}, lambda state: None))
