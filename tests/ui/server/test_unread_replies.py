"""Calls whose answers nobody fetches, and pages that are opened and closed by the hundred."""

from __future__ import annotations

import json
import select
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from tests.server_client import RunningApp, exchange, post, request_head
from tests.support.waiting import HANG_SECONDS, wait_until
from vitviz.system.strangers import MAX_UNREAD, REPLY_SECONDS
from vitviz.ui.server import unread_replies
from vitviz.ui.server.routes import PREFIX

pytestmark = pytest.mark.process


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """What is done once the time is over for which replies are kept."""
    found: list[Callable[[], None]] = []

    def call_later(seconds: float, function: Callable[..., None], *arguments: str) -> None:
        assert seconds == REPLY_SECONDS
        found.append(partial(function, *arguments))

    loop = SimpleNamespace(get_running_loop=lambda: SimpleNamespace(call_later=call_later))
    monkeypatch.setattr(unread_replies, "asyncio", loop)
    return found


@pytest.fixture(params=[6, pytest.param(MAX_UNREAD, marks=pytest.mark.long)])
def unread(served: RunningApp, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many unread replies a visitor may have; one test below has as many as the app itself allows."""
    monkeypatch.setattr("vitviz.ui.server.unread_replies.MAX_UNREAD", request.param)
    return int(request.param)


def call(served: RunningApp, address: str = "127.0.0.9") -> tuple[int, dict[str, Any]]:
    # A proxy on this machine says where it comes from.
    answer = post(served.port, f"{PREFIX}/call/v2/methods", b"{}", f"X-Forwarded-For: {address}")
    return answer.status, json.loads(answer.body)


def kept(served: RunningApp) -> list[str]:
    """The sessions of which Gradio keeps something."""
    queue = served.demo._queue
    return [*queue.pending_messages_per_session, *queue.pending_event_ids_session]


def test_answers_that_nobody_reads_are_dropped(
    served: RunningApp, later: list[Callable[[], None]], unread: int
) -> None:
    for _ in range(2):
        found = [call(served) for _ in range(unread)]
        assert {status for status, _ in found} == {200} and call(served)[0] == 429
        events = {answer["event_id"] for _, answer in found}
        wait_until(lambda: not served.demo._queue.event_ids_to_events)
        assert events <= set(kept(served))
        while later:
            later.pop()()
        assert not events & set(kept(served))


def test_of_answers_that_were_read_gradio_keeps_nothing_for_ever(
    served: RunningApp, later: list[Callable[[], None]]
) -> None:
    before = kept(served)
    for number in range(3):
        status, answer = call(served, "127.0.0.13")
        assert status == 200
        assert b"complete" in fetched(served, f"call/methods/{answer['event_id']}")
        assert joined(served, "again", "127.0.0.13") == 200
        assert b"process_completed" in fetched(served, "queue/data?session_hash=again")
        # The first of a session ends when others of it are unread.
        assert joined(served, f"other{number}", "127.0.0.13") == 200
    assert len(kept(served)) > len(before)
    later.pop(1)()
    assert joined(served, "again", "127.0.0.13") == 200
    later.pop(4)()
    assert b"process_completed" in fetched(served, "queue/data?session_hash=again")
    while later:
        later.pop()()
    assert kept(served) == before


def test_unread_answers_of_others_cost_nobody_theirs(served: RunningApp) -> None:
    """However many: Gradio's own store lets go of the oldest of 2,000 sessions."""
    assert joined(served, "patient", "127.0.0.14") == 200
    messages = served.demo._queue.pending_messages_per_session
    for number in range(5000):
        messages[f"silent-{number}"] = None
    assert b"process_completed" in fetched(served, "queue/data?session_hash=patient")
    for number in range(5000):
        del messages[f"silent-{number}"]


def test_one_visitor_has_so_many_calls_and_another_has_their_own(served: RunningApp) -> None:
    found = [call(served, "127.0.0.7") for _ in range(MAX_UNREAD + 1)]
    assert [status for status, _ in found] == [200] * MAX_UNREAD + [429]
    assert found[-1][1]["detail"] == f"{MAX_UNREAD} unread replies: fetch them first"
    status, answer = call(served, "127.0.0.8")
    assert status == 200
    for each in (answer, found[0][1]):
        assert b"complete" in fetched(served, f"call/methods/{each['event_id']}")
    wait_until(lambda: call(served, "127.0.0.7")[0] == 200)


@pytest.mark.parametrize("pages", [16, pytest.param(40, marks=pytest.mark.long)])
def test_pages_that_are_asked_for_at_once_hold_nobody_up(served: RunningApp, pages: int) -> None:
    with ExitStack() as stack:
        for _ in range(pages):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", served.port), HANG_SECONDS))
            connection.sendall(request_head("GET", "/"))
        served.expect_health()


def joined(served: RunningApp, session: str, address: str) -> int:
    body = json.dumps({"data": [], "fn_index": served.endpoint("methods")._id, "session_hash": session}).encode()
    return post(served.port, f"{PREFIX}/queue/join", body, f"X-Forwarded-For: {address}").status


def test_a_page_that_reads_has_its_answers_and_counts_no_more(served: RunningApp, unread: int) -> None:
    for number in range(unread + 4):
        assert joined(served, f"reader{number}", "127.0.0.3") == 200
        assert b"process_completed" in fetched(served, f"queue/data?session_hash=reader{number}")


def opened(served: RunningApp, session: str) -> socket.socket:
    reader = socket.create_connection(("127.0.0.1", served.port), HANG_SECONDS)
    reader.sendall(request_head("GET", f"{PREFIX}/queue/data?session_hash={session}", "Connection: close"))
    return reader


def fetched(served: RunningApp, target: str) -> bytes:
    """All of a stream of events."""
    return exchange(served.port, request_head("GET", f"{PREFIX}/{target}", "Connection: close")).body


def test_a_page_that_opens_the_next_stream_before_the_last_closes_loses_nothing(served: RunningApp) -> None:
    assert joined(served, "twice", "127.0.0.11") == 200
    first, second = opened(served, "twice"), opened(served, "twice")
    streams = {first: b"", second: b""}
    # Either of them is given the answer, and ends with it; the other reads on.
    while all(b"close_stream" not in content for content in streams.values()):
        ready, _, _ = select.select(list(streams), [], [], HANG_SECONDS)
        assert ready, streams
        for stream in ready:
            streams[stream] += stream.recv(65536)
    ended = next(stream for stream, content in streams.items() if b"close_stream" in content)
    while ended.recv(65536):
        pass
    [other] = streams.keys() - {ended}
    assert joined(served, "twice", "127.0.0.11") == 200
    while b"close_stream" not in streams[other]:
        received = other.recv(65536)
        assert received, streams[other]
        streams[other] += received
    assert b"process_completed" in streams[other] and b"unexpected_error" not in streams[other]
    first.close()
    second.close()


def test_a_stream_that_is_opened_when_all_is_read_waits_for_the_next_answer(served: RunningApp) -> None:
    """A page asks, and hears the answer by its last stream before it opens the next."""
    assert joined(served, "late", "127.0.0.12") == 200
    assert b"process_completed" in fetched(served, "queue/data?session_hash=late")
    with opened(served, "late") as reader:
        assert joined(served, "late", "127.0.0.12") == 200
        content = b""
        while received := reader.recv(65536):
            content += received
    assert b"process_completed" in content and b"unexpected_error" not in content


def test_who_asks_for_too_much_at_once_is_refused(served: RunningApp) -> None:
    """However many requests come before Gradio has taken the first."""
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda number: joined(served, f"greedy{number}", "127.0.0.2"), range(MAX_UNREAD + 20)))
    assert found.count(200) == MAX_UNREAD and found.count(429) == 20
