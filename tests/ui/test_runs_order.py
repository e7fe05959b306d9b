"""One request of a page at a time, replies that are kept for a while, and requests that are hostile or fail."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gradio.context import LocalContext
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.visits import OTHER_PAGE, PAGE, STATE, Visit
from vitviz.errors.kinds import MethodError
from vitviz.ui import handlers as handlers_module
from vitviz.ui.handlers import Handlers
from vitviz.ui.progress_reports import ProgressReport
from vitviz.ui.runs import MAX_KEPT_PER_VISITOR, Runs
from vitviz.ui.server.log import INTERNAL_ERROR
from vitviz.ui.service import AnalysisService

# ---- one at a time ----


class Held:
    """A kind of request that goes on until it is let go."""

    def __init__(self, visit: Visit) -> None:
        self.begun, self.release = threading.Event(), threading.Event()
        self.replies: list[dict[str, Any]] = []
        visit.runs.handlers.kinds["map"] = self

    def __call__(self, request: Mapping[str, Any], report: Callable[[ProgressReport], None]) -> dict[str, Any]:
        report(ProgressReport("Working", 3, 7))
        self.begun.set()
        while not self.release.wait(0.005):
            report(ProgressReport("Working", 4, 7))
        return {"path": "done"}


def started(visit: Visit, held: Held) -> threading.Thread:
    thread = threading.Thread(target=lambda: held.replies.append(visit.run("map")), daemon=True)
    thread.start()
    assert held.begun.wait(30)
    return thread


def test_progress_is_told_and_the_reply_is_kept(visit: Visit) -> None:
    held = Held(visit)
    thread = started(visit, held)
    state = visit.ask("progress", page=PAGE, number=1)
    assert state in ({"done": 3, "total": 7, "text": "Working"}, {"done": 4, "total": 7, "text": "Working"})
    assert (
        visit.ask("progress", page=OTHER_PAGE, number=1)
        == visit.ask("progress", page=PAGE, number=2)
        == {"unknown": True}
    )
    held.release.set()
    thread.join(30)
    assert visit.ask("progress", page=PAGE, number=1) == {"reply": held.replies[0]}
    assert held.replies == [{"page": PAGE, "number": 1, "kind": "map", "path": "done"}]


def test_a_newer_request_supersedes_the_one_before(visit: Visit) -> None:
    held = Held(visit)
    thread = started(visit, held)
    other = Visit(visit.runs, OTHER_PAGE, "bert")
    assert "failed" in other.run("rank")
    assert thread.is_alive()
    newer = visit.run("rank", uid=3)
    thread.join(30)
    assert not thread.is_alive()
    assert held.replies[0]["stopped"] is True and "failed" in newer
    # One that arrives late is not begun, nor one that was answered already.
    for number in (1, 2):
        late = visit.runs.answer({"page": PAGE, "number": number, "kind": "map"}, "anna")
        assert late == {"page": PAGE, "number": number, "kind": "map", "stopped": True}


def test_a_request_is_stopped_by_its_page_and_before_it_begins(visit: Visit) -> None:
    held = Held(visit)
    thread = started(visit, held)
    assert visit.ask("stop", page=OTHER_PAGE, number=1) == visit.ask("stop", page=PAGE, number=9) == {}
    assert thread.is_alive()
    assert visit.ask("stop", page=PAGE, number=1) == {}
    thread.join(30)
    assert held.replies[0]["stopped"] is True
    visit.number = 8
    assert visit.run("map")["stopped"] is True
    held.release.set()
    assert visit.run("map")["path"] == "done"


def test_what_runs_for_a_page_that_is_closed_ends(visit: Visit) -> None:
    held = Held(visit)
    thread = started(visit, held)
    visit.runs.closed("bert")
    assert thread.is_alive()
    visit.runs.closed("anna")
    thread.join(30)
    assert held.replies[0]["stopped"] is True


def test_an_analysis_ends_between_two_layers(visit: Visit, service: AnalysisService) -> None:
    def stop_at(state: Any) -> None:
        if isinstance(state, ProgressReport) and state.done == 1:
            visit.ask("stop", page=PAGE, number=1)

    analyze = service.analyze

    def watched(model: Any, upload: Any, settings: Any, report: Any, choice: Any) -> Any:
        return analyze(model, upload, settings, lambda state: (stop_at(state), report(state))[1], choice)

    service.analyze = watched  # type: ignore[method-assign]
    assert visit.run("analyze", state=STATE, index=0)["stopped"] is True
    assert len(service.cache) == len(service.small) == 0


# ---- what is kept ----


def test_replies_are_forgotten_after_a_minute(service: AnalysisService) -> None:
    now = [0.0]
    visit = Visit(Runs(Handlers(service), clock=lambda: now[0]))
    visit.run("rank")
    now[0] = 59.0
    assert "reply" in visit.ask("progress", page=PAGE, number=1)
    now[0] = 61.0
    assert visit.ask("progress", page=PAGE, number=1) == {"unknown": True} and len(visit.runs) == 0


def test_so_many_replies_are_kept_of_a_visitor_and_of_all(visit: Visit, monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(address: str, number: int) -> None:
        token = LocalContext.request.set(SimpleNamespace(client=SimpleNamespace(host=address)))  # type: ignore[arg-type]
        visit.runs.answer({"page": f"{address:x<22}".replace(".", "-"), "number": number, "kind": "rank"}, address)
        visit.answers["stop"]({"page": f"{address:y<22}".replace(".", "-"), "number": number})
        LocalContext.request.reset(token)

    ask("127.0.0.2", 0)
    for number in range(3 * MAX_KEPT_PER_VISITOR):
        ask("127.0.0.1", number)
    assert len(visit.runs) == MAX_KEPT_PER_VISITOR + 2
    monkeypatch.setattr("vitviz.ui.runs.MAX_KEPT_BYTES", 1000)
    ask("127.0.0.3", 0)
    assert sum(run.nbytes for run in visit.runs._runs.values()) <= 1000


# ---- hostile requests, and failures ----

LEAVES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.just([[0, 0]]))
JSON = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner))
NAMES = ["page", "number", "kind", "state", "index", "upload", "own", "link", "uid", "uids", "method", "parameters"]


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_request_is_answered_in_words(visit: Visit, uid: str, data: st.DataObject) -> None:
    request: Any = data.draw(st.dictionaries(st.sampled_from(NAMES), JSON, max_size=5) | JSON)
    plain = {"page": PAGE, "uid": uid, "method": "rollout", "state": STATE, "index": 0, "target": 1, "uids": [uid]}
    if isinstance(request, dict) and data.draw(st.booleans()):
        visit.number += 1
        request = {**plain, "number": visit.number, **request}
        request["kind"] = data.draw(st.sampled_from([*visit.runs.handlers.kinds, "x"]))
        if request["kind"] == "compare":
            # Of every method, which takes its time.
            request["uid"] = "gone"
    reply = visit.runs.answer(request, "anna")
    assert {"page", "number", "kind"} < set(reply) and INTERNAL_ERROR not in reply.values()
    for name, answer in visit.answers.items():
        assert INTERNAL_ERROR not in answer(request).values(), name


def test_what_is_no_envelope_is_refused(visit: Visit) -> None:
    good = {"page": PAGE, "number": 1, "kind": "open", "link": ""}
    bad: list[Any] = [None, [], "x", {}, {**good, "page": "short"}, {**good, "page": 3}, {**good, "number": -1}]
    bad += [{**good, "number": True}, {**good, "number": "1"}, {**good, "number": 10**300}]
    for request in bad:
        reply = visit.runs.answer(request, "anna")
        assert reply["page"] is None and reply["failed"].endswith(".")
    reply = visit.runs.answer({**good, "kind": "__class__"}, "anna")
    assert reply["number"] == 1 and reply["failed"].startswith("kind = '__class__': expected 'open', 'analyze'")
    assert len(visit.runs) == 0


def test_what_nobody_expected_is_one_sentence_and_the_log_has_nothing_of_the_visitor(
    visit: Visit, uid: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    secret = "a visitor's own words"

    def broken(*given: Any) -> Any:
        raise RuntimeError(secret)

    visit.runs.handlers.kinds["rank"] = broken
    with caplog.at_level(logging.ERROR):
        assert visit.run("rank", uid=uid)["failed"] == INTERNAL_ERROR
        monkeypatch.setattr(handlers_module, "as_python", broken)
        assert visit.ask("describe", state=STATE, uids=[uid]) == {"refused": INTERNAL_ERROR}
    assert "RuntimeError" in caplog.text and "in broken" in caplog.text and secret not in caplog.text
    # The next one is answered.
    assert "content" in visit.run("map", uid=uid, method="relevance")


@pytest.mark.slow
def test_memory_that_others_use_is_waited_for_and_can_be_given_up(
    visit: Visit, uid: str, service: AnalysisService
) -> None:
    most = service.budget.max_bytes - service.budget.nbytes
    told = threading.Event()

    def stop_when_told() -> None:
        while visit.ask("progress", page=PAGE, number=1).get("text") != "Waiting for memory that others use":
            time.sleep(0.01)
        told.set()
        visit.ask("stop", page=PAGE, number=1)

    with service.budget.share(most, "another"):
        thread = threading.Thread(target=stop_when_told, daemon=True)
        thread.start()
        assert visit.run("map", uid=uid, method="relevance", parameters={})["stopped"] is True
        thread.join(30)
    assert told.is_set() and "content" in visit.run("map", uid=uid, method="relevance", parameters={})


def test_a_picture_that_is_none_fails_in_words(visit: Visit, tmp_path: Path) -> None:
    (tmp_path / "bad.png").write_bytes(b"<html>")
    upload = {"path": str(tmp_path / "bad.png"), "orig_name": "bad.png"}
    assert visit.run("analyze", state=STATE, index=0, upload=upload)["failed"].startswith("bad.png: ")
    outside = visit.run("analyze", state=STATE, index=0, upload={"path": "/etc/passwd"})
    assert "not uploaded here" in outside["failed"]
    with pytest.raises(MethodError):
        visit.runs.handlers.analyze({"state": STATE, "index": 1}, lambda state: None)
