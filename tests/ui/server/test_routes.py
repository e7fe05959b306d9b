"""The routes of the app: those of the table are served, every other one of Gradio is refused."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
import safehttpx
from gradio import processing_utils

from tests.server_client import SESSION, RunningApp, exchange, form, post, request_head
from tests.support.api_calls import PLAIN
from tests.support.waiting import HANG_SECONDS
from vitviz.errors.kinds import ImageError
from vitviz.system.strangers import JSON_BYTES, TOOL_BYTES
from vitviz.ui.server.routes import API_ROUTES, ROUTES, TOOL_ROUTES, Body, Route, find_route

pytestmark = pytest.mark.process
VALUES = {"path": "index.js", "session_hash": SESSION, "api_name": "models", "event_id": SESSION}
# The page's own.
OWN = {f"{method} {path}" for method in ("GET", "HEAD") for path in ("/health", "/preview", "/static/{version}/{name}")}
OWN |= {f"{method} /device/{path}" for method in ("GET", "HEAD") for path in ("", "{folder}/{name}")}
OWN |= {f"POST /{name}" for name in ("upload", "map", "describe", "run", "end")}
OWN |= {"GET /files/{uid}/{name}", "GET /made/{folder}/{name}"}
# Every route that is served; a new one of Gradio is refused until it stands in the table and here.
ALLOWED = OWN | {
    "GET /",
    "HEAD /",
    "GET /robots.txt",
    "GET /config",
    "GET /config/",
    "GET /gradio_api/info",
    "GET /gradio_api/info/",
    "GET /gradio_api/app_id",
    "GET /gradio_api/startup-events",
    "POST /gradio_api/upload",
    "GET /gradio_api/file={path:path}",
    "HEAD /gradio_api/file={path:path}",
    # Gradio's own, which ours stands before.
    "GET /gradio_api/file={path_or_url:path}",
    "HEAD /gradio_api/file={path_or_url:path}",
    "POST /gradio_api/queue/join",
    "GET /gradio_api/queue/data",
    "POST /gradio_api/cancel",
    "POST /gradio_api/reset",
    "POST /gradio_api/reset/",
    "POST /gradio_api/call/{api_name}",
    "POST /gradio_api/call/{api_name}/",
    "POST /gradio_api/call/v2/{api_name}",
    "POST /gradio_api/call/v2/{api_name}/",
    "GET /gradio_api/call/{api_name}/{event_id}",
    "GET /gradio_api/call/v2/{api_name}/{event_id}",
}


def gradio_routes(routes: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """The method and path of every route of an app, those of the routers in it too."""
    for route in routes:
        inner = getattr(route, "original_router", None)
        if inner is not None:
            yield from gradio_routes(inner.routes)
        for method in getattr(route, "methods", None) or ():
            yield method, prefix + route.path


def filled(path: str) -> str:
    """A path of a route, with values for its parameters."""
    return re.sub(r"\{(\w+)(?::\w+)?\}", lambda found: VALUES.get(found[1], "1"), path)


def test_exactly_the_listed_routes_of_gradio_are_served(served: RunningApp) -> None:
    found = set(gradio_routes(served.app.routes))
    assert len(found) > 60
    allowed = {f"{method} {path}" for method, path in found if find_route(method, filled(path))}
    # A path of a route may have an end that the pattern of another one allows.
    assert allowed == ALLOWED


def test_every_row_of_the_table_is_a_route(served: RunningApp) -> None:
    found = [(method, filled(path)) for method, path in gradio_routes(served.app.routes)]

    def is_there(row: Route) -> bool:
        return any(method in row.methods and re.fullmatch(row.pattern, path) for method, path in found)

    assert [row for row in (*ROUTES, *API_ROUTES) if not is_there(row)] == []


def test_every_other_route_is_answered_404_in_one_sentence(served: RunningApp) -> None:
    refused = [each for each in gradio_routes(served.app.routes) if f"{each[0]} {each[1]}" not in ALLOWED]
    assert len(refused) > 25
    with httpx.Client(base_url=served.address, timeout=HANG_SECONDS, verify=False) as client:
        for method, path in refused:
            answer = client.request(method, filled(path), content=b"{}" if method == "POST" else None)
            assert answer.status_code == 404, (method, path)
            if method != "HEAD":
                assert answer.json() == {"detail": "this app has no such route"}, (method, path)


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"])
def test_no_other_method_is_served(served: RunningApp, method: str) -> None:
    for path in ("/", "/config", "/gradio_api/upload", "/gradio_api/queue/join"):
        assert exchange(served.port, request_head(method, path)).status == 404


@pytest.mark.parametrize(
    "path",
    [
        "/gradio_api/deep_link?session_hash=visitor0",
        "/gradio_api/proxy=x",
        "/gradio_api/file/etc/passwd",
        "/openapi.json",
        "/gradio_api/openapi.json",
        "/monitoring",
        "/gradio_api/monitoring",
        "/docs",
        "/redoc",
        "/login",
        "/gradio_api/mcp/",
        "/gradio_api/run-history/records",
        "/assets/a.js",
        "/gradio_api/upload_progress",
        "/gradio_api/file=%0aforged",
        "//config",
        "/gradio_api/heartbeat/visitor0",
    ],
)
def test_what_has_no_row_has_no_answer_but_404(served: RunningApp, path: str) -> None:
    answer = exchange(served.port, request_head("GET", path))
    assert (answer.status, answer.detail) == (404, "this app has no such route")


def test_no_state_is_written_for_a_link(served: RunningApp) -> None:
    body = b'{"data": [], "fn_index": 0, "session_hash": "visitor0"}'
    post(served.port, "/gradio_api/queue/join", body)
    httpx.get(f"{served.address}/gradio_api/deep_link?session_hash=visitor0", **PLAIN)
    assert not list(served.folder.rglob("deep_links"))


def test_the_routes_for_tools_are_there_only_where_tools_are() -> None:
    for method, path in [("POST", "/gradio_api/mcp/"), ("GET", "/gradio_api/mcp"), ("GET", "/gradio_api/mcp/schema")]:
        assert find_route(method, path) is None and find_route(method, path, tools=True) is not None
    assert find_route("GET", "/gradio_api/mcp/sse", tools=True) is None


def test_a_row_says_why_it_is_there_and_how_large_its_body_may_be() -> None:
    for row in (*ROUTES, *API_ROUTES, *TOOL_ROUTES):
        assert row.reason and (row.body is Body.NONE) == ("POST" not in row.methods)
    assert [each.value for each in Body] == [0, JSON_BYTES, TOOL_BYTES, None]


# What nothing is fetched by.


@contextmanager
def no_visitors() -> Iterator[int]:
    """The port of a server on this machine to which nobody may connect."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()


def test_no_route_fetches_an_address(served: RunningApp, monkeypatch: pytest.MonkeyPatch) -> None:
    # This machine counts as public, as far as Gradio asks.
    for module in (safehttpx, processing_utils):
        monkeypatch.setattr(module, "is_public_ip", lambda ip: True)
    events = [fn._id for fn in served.demo.fns.values()]
    with no_visitors() as port, httpx.Client(base_url=served.address, timeout=HANG_SECONDS, verify=False) as client:
        own = f"http://127.0.0.1:{port}/cat.jpg"
        forms = [own, own.upper(), f"//127.0.0.1:{port}/cat.jpg", f" {own}", own.replace("//", "/"), f"file={own}"]
        for method, path in gradio_routes(served.app.routes):
            if method not in ("GET", "HEAD"):
                continue
            for each in forms:
                target = re.sub(r"\{\w+(?::\w+)?\}", lambda _, each=each: each, path)
                if "heartbeat" not in target and "queue/data" not in target:
                    client.request(method, target, params={"url": each, "path": each, "deep_link": each})
        files = [
            {"path": each, "url": url, "orig_name": "cat.jpg", "meta": {"_type": "gradio.FileData"}}
            for each in forms
            for url in (None, own)
        ]
        for file in files:
            for target, body in [
                ("call/analyze", {"data": [file, None, None, None]}),
                ("call/v2/analyze", {"image": file}),
                ("call/v2/open", {"model": file["path"]}),
            ]:
                client.post(f"/gradio_api/{target}", json=body)
            for name in ("map", "describe"):
                body = {"uid": file["path"], "uids": [file["path"]], "state": {}, "method": "rollout"}
                client.post(f"/{name}", json=body)
        asked = [
            *({"kind": "analyze", "state": {}, "index": 0, "own": {"files": [file]}} for file in files),
            *({"kind": "analyze", "state": {}, "index": 0, "own": {"hub": each}} for each in forms),
            *(
                {"kind": "open", "link": f"?{word}={each}"}
                for word in ("model", "picture", "example")
                for each in forms
            ),
        ]
        for number, request in enumerate(asked):
            # Each of a page of its own, so that none is replaced by the next.
            answer = client.post("/run", json={"page": f"{number:022}", "number": 1, **request})
            reply = json.loads(answer.text.splitlines()[-1])
            reply = reply.get("reply", reply)
            assert "failed" in reply or reply["notes"], reply
        for index in events:
            count = len(served.demo.fns[index].inputs)
            for file in files[:2]:
                body = {"data": [file] * count, "fn_index": index, "session_hash": SESSION}
                client.post("/gradio_api/queue/join", json=body)
        client.post("/gradio_api/upload", files={"files": (own, b"x")})
        client.get("/", headers={"X-Gradio-Server": own, "X-Forwarded-Host": f"127.0.0.1:{port}"})
        # All of the events have run when their answers are read.
        with client.stream("GET", f"/gradio_api/queue/data?session_hash={SESSION}") as answer:
            for _ in answer.iter_lines():
                pass


async def test_no_file_of_a_call_is_fetched_whoever_calls(served: RunningApp) -> None:
    component = served.endpoint("analyze").inputs[0]
    with no_visitors() as port:
        file = {"path": f"http://127.0.0.1:{port}/cat.jpg", "meta": {"_type": "gradio.FileData"}}
        with pytest.raises(ImageError, match="not uploaded here"):
            await processing_utils.async_move_files_to_cache(file, component)


def test_files_of_the_app_are_served_and_others_are_not(served: RunningApp) -> None:
    answer = post(served.port, "/gradio_api/upload", form(("a.txt", b"x")), kind="multipart/form-data; boundary=edge")
    [path] = json.loads(answer.body)
    assert exchange(served.port, request_head("GET", f"/gradio_api/file={path}")).body == b"x"
    for other in (__file__, "/etc/passwd", str(served.folder), "~", "..", "%00", f"{path}/.."):
        assert exchange(served.port, request_head("GET", f"/gradio_api/file={other}")).status in (403, 404)
