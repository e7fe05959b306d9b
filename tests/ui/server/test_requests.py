"""Wrong, large, deep, slow and broken requests: a sentence for each, nothing in the log, and everybody else served."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from tests.server_client import SESSION, Answer, RunningApp, exchange, form, post, request_head
from tests.support.full_disk import FullDisk
from tests.support.waiting import HANG_SECONDS, until, wait_until
from tests.support.wrong_requests import EDGE, JSON_ROUTES, WRONG_FORMS
from vitviz.system.strangers import JSON_BYTES, JSON_ITEMS, REQUEST_BYTES, TOOL_BYTES
from vitviz.ui.server import log
from vitviz.ui.server.bodies import BYTES_A_SECOND, LimitedBody, read_json
from vitviz.ui.server.hosts import HostRules
from vitviz.ui.server.log import INTERNAL_ERROR
from vitviz.ui.server.request_filter import PART_BYTES, RequestFilter
from vitviz.ui.server.routes import EVENT_STREAM, MCP
from vitviz.ui.server.rule import RequestError, UnderWay
from vitviz.ui.server.visitor_files import Folder

pytestmark = [pytest.mark.hostile, pytest.mark.process]
Make = Callable[..., Any]


# The client of these tests logs what it does itself.
OTHERS = ("httpx", "httpcore", "asyncio")


@pytest.fixture
def silent(capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fails where anything was logged or printed."""
    capfd.readouterr()
    yield
    printed = capfd.readouterr()
    assert (printed.out, printed.err) == ("", "")
    assert [each for each in caplog.records if not each.name.startswith(OTHERS)] == []


def is_sentence(answer: Answer) -> bool:
    return 400 <= answer.status < 500 and len(answer.body) < 600 and b"Traceback" not in answer.body


# Bodies.


@pytest.mark.parametrize("route", JSON_ROUTES)
def test_every_wrong_body_is_told_in_a_sentence(served: RunningApp, silent: None, route: str) -> None:
    values = [{"x": 1}, [], None, 5, "text", True, {}, {"data": 5}, {"data": [{}] * 3, "fn_index": True}]
    values += [{"fn_index": 0, "data": [], "session_hash": wrong} for wrong in (5, "", "a b", "a\n", "x" * 200, [])]
    values += [{"fn_index": wrong, "data": [], "session_hash": SESSION} for wrong in (-1, 10**9, "0", 1.5, [0])]
    values += [{"fn_index": 0, "data": [1], "session_hash": SESSION, "trigger_id": [1]}]
    for value in values:
        # That is what these endpoints take.
        if value == {} and route in ("call/v2/models", "call/v2/methods"):
            continue
        if isinstance(value, dict) and value.get("data") == [] and route in ("call/models", "call/methods"):
            continue
        answer = post(served.port, f"/gradio_api/{route}", json.dumps(value).encode())
        assert is_sentence(answer), (value, answer)
        assert isinstance(answer.detail, str) or answer.detail[0]["message"], (value, answer)
    for content in (b"", b"{", b"\xff\xfe", b"{meow}", b'{"data": [' + b"9" * 5000 + b"]}", b'"\\', b"]", b'{"a": "'):
        answer = post(served.port, f"/gradio_api/{route}", content)
        assert is_sentence(answer), (content, answer)


@pytest.mark.parametrize("route", ["cancel", "reset"])
def test_wrong_fields_of_a_cancelled_call_are_told_in_a_sentence(served: RunningApp, silent: None, route: str) -> None:
    wrong = [{"fn_index": each, "event_id": "a", "session_hash": "b"} for each in (float("inf"), "x", [1])]
    for value in (*wrong, {}, {"x": 1}, [], None, 5, {"event_id": "a\ud800"}):
        answer = post(served.port, f"/gradio_api/{route}", json.dumps(value).encode())
        assert is_sentence(answer) or (route, answer.status) == ("reset", 200), (value, answer)


def test_json_of_any_depth_gets_a_sentence(served: RunningApp, silent: None) -> None:
    """Also what Python reads, and cannot write again."""
    for depth in range(100, sys.getrecursionlimit() + 100, 20):
        content = b'{"data": ' + b"[" * depth + b"]" * depth + b"}"
        for route in ("call/methods", "call/v2/maps"):
            assert is_sentence(post(served.port, f"/gradio_api/{route}", content)), depth


def test_an_event_of_the_page_with_wrong_values_logs_no_line_of_them(
    served: RunningApp, capfd: pytest.CaptureFixture[str]
) -> None:
    capfd.readouterr()
    secret = "\nforged line /secret/place"
    for index, fn in served.demo.fns.items():
        for wrong in ({"path": secret}, [secret]):
            body = {"data": [wrong] * len(fn.inputs), "fn_index": index, "session_hash": "wrong", "event_data": wrong}
            post(served.port, "/gradio_api/queue/join", json.dumps(body).encode())
    with httpx.stream(
        "GET", f"{served.address}/gradio_api/queue/data?session_hash=wrong", timeout=HANG_SECONDS
    ) as answer:
        for _ in answer.iter_lines():
            pass
    printed = "".join(capfd.readouterr())
    assert "forged" not in printed and "secret" not in printed and "Traceback" not in printed


@pytest.mark.parametrize("route", ["gradio_api/queue/join", "gradio_api/call/v2/maps", "run"])
def test_a_large_body_is_refused_before_it_is_there(served: RunningApp, silent: None, route: str) -> None:
    kind, target = "Content-Type: application/json", f"/{route}"
    # The client is not done; it has the answer all the same.
    declared = exchange(served.port, request_head("POST", target, kind, f"Content-Length: {32 * 2**20}"), b"[" * 1000)
    assert declared.status == 413 and "more than 131,072 bytes" in declared.detail
    chunk = b"%x\r\n" % 2**16 + b'{"a":"bc",' + b" " * (2**16 - 10) + b"\r\n"
    chunked = exchange(served.port, request_head("POST", target, kind, "Transfer-Encoding: chunked"), *[chunk] * 64)
    assert chunked.status in (400, 413)
    for length in ("5, 6", "-1", "x", "9" * 30):
        assert exchange(served.port, request_head("POST", target, kind, f"Content-Length: {length}")).status in (
            400,
            413,
        )


def test_a_body_that_nests_is_refused_and_nobody_waits(served: RunningApp) -> None:
    deep = b'{"a":' * 2**18
    with ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(post, served.port, "/gradio_api/queue/join", deep[:JSON_BYTES]) for _ in range(8)]
        served.expect_health()
        assert all(answer.result().status in (400, 413, 422) for answer in answers)


async def test_a_body_of_many_items_is_refused_before_it_is_read() -> None:
    """Empty lists take 24 times their length once they are read; the strings of pictures take nothing more."""

    async def read(content: bytes) -> Any:
        async def receive() -> Any:
            return {"type": "http.request", "body": content}

        return await read_json(LimitedBody(receive, TOOL_BYTES))

    picture = {"image": "data:image/png;base64," + "A" * 2**22}
    assert await read(json.dumps(picture).encode()) == picture
    assert await read(b"[" + b"0," * (JSON_ITEMS - 1) + b"0]") == [0] * JSON_ITEMS
    for item in (b"[]", b"{}", b"0"):
        with pytest.raises(RequestError, match="more than 20,000 items"):
            await read(b"[" + (item + b",") * JSON_ITEMS + item + b"]")


async def test_a_large_body_that_waits_counts_as_several_requests() -> None:
    under_way = UnderWay(at_once=1, most=40)
    async with AsyncExitStack() as waiting:
        await waiting.enter_async_context(under_way.request("one", 20 * REQUEST_BYTES))
        # It would wait, if it were not too much.
        with pytest.raises(RequestError, match="40 of your requests"):
            await waiting.enter_async_context(under_way.request("one", 20 * REQUEST_BYTES))
        assert under_way.counts == {"one": 21}
        await waiting.enter_async_context(under_way.request("another", 20 * REQUEST_BYTES))
    assert not under_way.counts


# Uploads.


def upload(served: RunningApp, content: bytes, kind: str = EDGE) -> Answer:
    return post(served.port, "/gradio_api/upload", content, kind=kind)


async def test_a_body_counts_before_it_is_there() -> None:
    """By the length that it states, or else by the largest: their memory is the visitor's while they arrive, too."""
    under_way = UnderWay(most=40)
    blocks: Any = SimpleNamespace(mcp_server=True, fns={1: None}, _queue=SimpleNamespace())
    door: Any = RequestFilter(pytest.fail, blocks, HostRules.of(), under_way, Folder(), 0)

    async def statuses(path: str, *length: tuple[bytes, bytes]) -> list[int]:
        found, stalled = list[int](), asyncio.Event()

        async def receive() -> Any:
            await stalled.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            found.extend([message["status"]] if "status" in message else [])

        scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "client": ("10.0.0.1", 1)}
        headers = [(b"host", b"localhost"), *length]
        request = {**scope, "headers": headers, "scheme": "http"}
        asked = [asyncio.create_task(door(request, receive, send)) for _ in range(4)]
        await until(lambda: len(found) == 2)
        assert under_way.counts["10.0.0.1"] == 34
        stalled.set()
        await asyncio.gather(*asked)
        return found

    stated = b"content-length", str(JSON_BYTES).encode()
    for path, *length in (("/run", stated), ("/map", stated), ("/run",), ("/gradio_api/queue/join", stated)):
        assert await statuses(path, *length) == [429, 429]
    assert not under_way.counts


async def test_a_request_counts_until_its_answer_is_taken() -> None:
    """Streams and the readers of one run, too; each part of an answer waits for those before."""
    under_way, taken, parts = UnderWay(at_once=2, most=4), asyncio.Event(), list[bytes]()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": bytes(range(256)) * 1000})

    blocks: Any = SimpleNamespace(mcp_server=True, fns={1: None}, _queue=SimpleNamespace())
    door: Any = RequestFilter(app, blocks, HostRules.of(), under_way, Folder(), 0)

    async def ask(method: str, path: str) -> int:
        statuses = list[int]()

        async def receive() -> Any:
            return {"type": "http.request", "body": b"{}"}

        async def send(message: Any) -> None:
            statuses.extend([message["status"]] if "status" in message else [])
            if len(message.get("body", b"")) > 1000:
                await taken.wait()
                parts.append(message["body"])

        scope = {"type": "http", "method": method, "path": path, "scheme": "http", "client": ("10.0.0.1", 1)}
        headers = [(b"host", b"localhost"), (b"content-length", b"2")]
        await door({**scope, "query_string": b"session_hash=a", "headers": headers}, receive, send)
        return statuses[0]

    paths = ("GET", "/static/a/page.js"), ("GET", EVENT_STREAM), ("POST", "/run"), ("GET", f"{MCP}/")
    waiting = [asyncio.create_task(ask(*each)) for each in paths]
    await until(lambda: under_way.counts["10.0.0.1"] == 4)
    assert await ask("GET", "/") == 429
    taken.set()
    assert await asyncio.gather(*waiting) == [200] * 4
    assert max(map(len, parts)) == PART_BYTES and sum(map(len, parts)) == 4 * 256_000
    assert await ask("GET", "/") == 200 and not under_way.counts


async def test_what_the_server_takes_is_not_counted_as_the_clients_time(clock: list[float]) -> None:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"1", "more_body": True}

    body = LimitedBody(receive, 100)
    for _ in range(3):
        assert (await body())["body"] == b"1"
        clock[0] += 1000


async def test_a_body_that_comes_too_slowly_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has come earns time for what follows."""
    monkeypatch.setattr("vitviz.ui.server.bodies.BODY_SECONDS", 0.05)
    parts = [bytes(60 * BYTES_A_SECOND), b"late"]

    async def receive() -> dict[str, Any]:
        if not parts:
            await asyncio.Event().wait()
        await asyncio.sleep(0.2 if parts == [b"late"] else 0)
        return {"type": "http.request", "body": parts.pop(0), "more_body": True}

    body = LimitedBody(receive, 2**40)
    assert [len((await body())["body"]) for _ in range(2)] == [60 * BYTES_A_SECOND, 4]
    silent = LimitedBody(receive, 2**40)
    with pytest.raises(RequestError, match="expected all of it within 10 s, and 1 s more for each 128 KiB") as late:
        await silent()
    assert late.value.status_code == 408


@pytest.mark.parametrize("name", WRONG_FORMS)
def test_a_wrong_form_is_told_in_a_sentence_and_leaves_nothing(served: RunningApp, silent: None, name: str) -> None:
    before = served.files()
    content, kind = WRONG_FORMS[name]
    answer = post(served.port, "/gradio_api/upload", content, kind=kind)
    assert is_sentence(answer) and isinstance(answer.detail, str), answer
    # None of the parser's own words, which may quote the form.
    assert not any(word in answer.detail for word in ("multipart", "Too many", "exceeded")), answer
    assert served.files() == before


@pytest.mark.parametrize("route", ["/gradio_api/upload", "/upload?name=a"])
def test_an_upload_that_is_aborted_leaves_nothing(served: RunningApp, silent: None, route: str) -> None:
    before = served.files()
    for at in (10, 150, 900_000):
        content = form(("a.bin", b"1"), ("b.bin", b"x" * 10**6))
        with socket.create_connection(("127.0.0.1", served.port)) as connection:
            kind, length = f"Content-Type: {EDGE}", f"Content-Length: {len(content)}"
            connection.sendall(request_head("POST", route, kind, length) + content[:at])
            if route.startswith("/upload"):
                wait_until(lambda: served.files() > before)
        wait_until(lambda: served.files() == before)


@pytest.mark.parametrize("route", ["/gradio_api/upload", "/upload?name=a"])
def test_a_full_disk_is_told_and_keeps_nothing(
    served: RunningApp, silent: None, monkeypatch: pytest.MonkeyPatch, route: str
) -> None:
    before = served.files()

    with monkeypatch.context() as patched:
        patched.setattr("vitviz.ui.server.visitor_files.open", FullDisk, raising=False)
        answer = post(served.port, route, form(("a.bin", b"x" * 10**5)), kind=EDGE)
        assert (answer.status, answer.detail) == (507, "this server cannot keep a file now (No space left on device)")
    wait_until(lambda: served.files() == before)


def test_an_upload_larger_than_allowed_is_refused_and_leaves_nothing(served: RunningApp, silent: None) -> None:
    before = served.files()
    kind = f"Content-Type: {EDGE}"
    declared = exchange(served.port, request_head("POST", "/gradio_api/upload", kind, f"Content-Length: {3 * 2**30}"))
    assert declared.status == 413
    assert served.files() == before


# What nobody expected, and the log.


def test_what_nobody_expected_is_one_sentence_and_one_line(
    served: RunningApp,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("/secret/place\nforged")

    monkeypatch.setattr(served.app.handlers, "start", broken)
    answer = exchange(served.port, request_head("GET", "/?%0aforged"))
    assert (answer.status, answer.detail) == (500, INTERNAL_ERROR)
    wait_until(lambda: [each for each in caplog.records if each.name == log.LOGGER.name])
    [record] = [each for each in caplog.records if each.name == log.LOGGER.name]
    assert record.getMessage().startswith("/: ") and record.getMessage().endswith("broken > RuntimeError")
    assert "secret" not in caplog.text and "forged" not in caplog.text and "\n" not in record.getMessage()
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "forged",
    [
        request_head("GET", "/gradio_api/file=/a%0d%0aERROR%20forged"),
        request_head("GET", "/gradio_api/file=/tmp/%1b[31m"),
        request_head("GET", "/gradio_api/queue/data?session_hash=%0aforged"),
        request_head("GET", "/gradio_api/call/v2/models/forged"),
        request_head("GET", "/?deep_link=%0aforged&__theme=%0aforged"),
        request_head("GET", "/", "Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13"),
        request_head("GET", "/static/%2e%2e/%2e%2e/forged"),
        request_head("GET", "/gradio_api/file=" + "a" * 5000),
    ],
)
def test_a_strange_request_is_not_in_the_log(served: RunningApp, silent: None, forged: bytes) -> None:
    assert exchange(served.port, forged).status in (200, 400, 403, 404, 426)
    served.expect_health()


# Many at once.


async def test_stalled_bodies_of_others_hold_nobody_up() -> None:
    """Two addresses stop 66 bodies one byte before their end."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    blocks: Any = SimpleNamespace(mcp_server=None, fns={}, _queue=SimpleNamespace())
    door: Any = RequestFilter(app, blocks, HostRules.of(), UnderWay(), Folder(), 0)
    stalled, begun = asyncio.Event(), list[str]()

    async def request(address: str, *, is_whole: bool) -> list[int]:
        sent, found = [{"type": "http.request", "body": b" " * 1000 + b"{}", "more_body": not is_whole}], list[int]()

        async def receive() -> Any:
            if not sent:
                begun.append(address)
                await stalled.wait()
            return sent.pop() if sent else {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            found.extend([message["status"]] if "status" in message else [])

        scope = {"type": "http", "method": "POST", "path": "/map", "query_string": b"", "client": (address, 1)}
        headers = [(b"host", b"localhost"), (b"content-length", b"1002")]
        await door({**scope, "headers": headers, "scheme": "http"}, receive, send)
        return found

    others = [asyncio.create_task(request(f"10.8.0.{number % 2}", is_whole=False)) for number in range(66)]
    await until(lambda: len(begun) == len(others))
    assert await request("10.9.0.1", is_whole=True) == [200]
    assert not any(other.done() for other in others)
    stalled.set()
    assert await asyncio.gather(*others) == [[]] * len(others)


def test_slow_connections_hold_nobody_up(served: RunningApp) -> None:
    with ExitStack() as stack:
        for number in range(100):
            slow = stack.enter_context(socket.create_connection(("127.0.0.1", served.port)))
            slow.sendall(b"GET /health HTTP/1.1\r\nX-Slow: "[: number % 30])
        served.expect_health()


def test_queued_events_hold_up_nobody(served: RunningApp) -> None:
    body = json.dumps({"data": [], "fn_index": served.endpoint("methods")._id, "session_hash": "queue"}).encode()

    def join(number: int) -> Answer:
        # Of eight visitors, none of whom has too many.
        sender = f"X-Forwarded-For: 127.0.1.{number % 8}"
        whose = body.replace(b'"queue"', b'"queue%d"' % (number % 8))
        return post(served.port, "/gradio_api/queue/join", whose, sender)

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(join, range(200)))
    assert all(answer.status == 200 for answer in answers)
    served.expect_health()


async def test_one_visitor_has_so_many_requests_under_way_and_the_next_wait() -> None:
    begun, release = list[str](), asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        begun.append(scope["client"][0])
        await release.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    blocks: Any = SimpleNamespace(mcp_server=None, fns={}, _queue=SimpleNamespace())
    under_way = UnderWay(at_once=4, most=10)
    door: Any = RequestFilter(app, blocks, HostRules.of(), under_way, Folder(), 0)

    def visitor(address: str) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=httpx.ASGITransport(door, client=(address, 1)), base_url="http://[::1]")

    async with visitor("127.1.0.1") as one, visitor("127.1.0.2") as other:
        requests = [asyncio.create_task(one.post("/map", json={})) for _ in range(10)]
        await until(lambda: under_way.counts["127.1.0.1"] == 10 and len(begun) >= 4)
        # Who waits has not reached the app, and delays nobody else.
        assert begun == ["127.1.0.1"] * 4
        for path in ("/map", "/upload"):
            refused = await one.post(path, json={})
            assert refused.status_code == 429 and "10 of your requests are under way" in refused.text
        requests.append(asyncio.create_task(other.get("/files/a/b")))
        await until(lambda: len(begun) > 4)
        assert begun[4:] == ["127.1.0.2"]
        release.set()
        assert {answer.status_code for answer in await asyncio.gather(*requests)} == {200}
        assert (await one.post("/map", json={})).status_code == 200
    assert not under_way.counts
