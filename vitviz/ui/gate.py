"""What a request must be before Gradio sees it: small, flat, to an endpoint that there is, with the fields it has.

Gradio answers what it cannot read with an empty error, and with a traceback in the log. What needs no queue, such as
whether the app is there, is answered here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from inspect import Parameter, signature
from typing import Any
from urllib.parse import urlsplit

import gradio as gr

from vitviz.errors import MethodError, VitvizError, choices, listed, shown
from vitviz.ui.arguments import fields, upload_of

# Of a request: the page's have thousands of bytes. Tools may bring a picture in it, as base64.
MOST_BYTES = 32 * 2**20
# Objects and lists inside each other.
MOST_NESTED = 32
TOO_DEEP = f"the body has lists or objects more than {MOST_NESTED} deep in each other"
HEALTH = "/health"
UPLOAD, JOIN, MCP = "/gradio_api/upload", "/gradio_api/queue/join", "/gradio_api/mcp"
CALL = re.compile(r"/gradio_api/(?P<way>call/v2|call|run|api|queue)/(?P<name>[^/]+)/?$")
# Where the answer of a call is fetched.
ANSWER = re.compile(r"/gradio_api/call/(?:v2/)?[^/]+/(?P<event>[^/]+)/?$")
BY_NAME, QUEUE = "call/v2", "queue"
# Past the queue: the page's own quick events go this way.
DIRECT = ("run", "api")

# As servers and apps of Python speak with each other: the ASGI specification, version 3.
Message = dict[str, Any]
Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class _Refused(Exception):
    """Why a request goes no further, and the status that says so."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Gate:
    """Middleware that answers a request that cannot be served, in one sentence, and lets all others pass.

    Args:
        app: what stands behind it.
        health: of the page's app, what its address for that answers.
    """

    def __init__(self, app: App, health: Callable[[gr.Blocks], dict[str, str]]) -> None:
        self.app, self.health = app, health

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
        elif scope["method"] == "POST" and UPLOAD not in scope["path"]:
            await self._take(scope, receive, send)
        elif scope["path"].removeprefix(urlsplit(scope.get("root_path", "")).path) == HEALTH:
            await _answer(send, 200, self.health(scope["app"].get_blocks()))
        else:
            fetched = ANSWER.search(scope["path"])
            await self.app(scope, receive, send if fetched is None else _forgetting(scope, fetched["event"], send))

    async def _take(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_tool = MCP in scope["path"]
        try:
            content = await _body(receive, MOST_BYTES)
            if not is_tool:
                content = _checked(scope, content)
        except (_Refused, VitvizError) as error:
            await _answer(send, *_told(scope["path"], error))
        else:
            whole = {"type": "http.request", "body": content, "more_body": False}
            await self.app(scope, _before(whole, receive), send)


async def _answer(send: Send, status: int, said: dict[str, Any]) -> None:
    content = json.dumps(said).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})


def _told(path: str, error: Exception) -> tuple[int, dict[str, Any]]:
    """One sentence, as programs that post to the path find it, and its status."""
    if path.rstrip("/").endswith(JOIN):
        # Gradio's clients read one only of what is not valid.
        told = {"__type__": "validate", "is_valid": False, "parameter_name": "request", "message": str(error)}
        return 422, {"detail": [told]}
    return error.status if isinstance(error, _Refused) else 400, {"detail": str(error)}


def _before(first: Message, receive: Receive) -> Receive:
    """Receives a message, and then what comes."""
    waiting = [first]

    async def next_message() -> Message:
        return waiting.pop() if waiting else await receive()

    return next_message


def _forgetting(scope: Scope, event: str, send: Send) -> Send:
    """Lets go of the session that Gradio made for one call, with the end of its answer.

    Gradio keeps the last ten thousand, each with a copy of the page's settings and of what was said.
    """
    sessions = scope["app"].state_holder

    async def forget_and_send(message: Message) -> None:
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            with sessions.lock:
                sessions.session_data.pop(event, None)
                sessions.time_last_used.pop(event, None)
        await send(message)

    return forget_and_send


async def _body(receive: Receive, most: int) -> bytes:
    content = bytearray()
    while True:
        message = await receive()
        content += message.get("body", b"")
        if len(content) > most:
            raise _Refused(413, f"the body has more than {most:,} bytes; files go to {UPLOAD}")
        if not message.get("more_body", False):
            return bytes(content)


def _checked(scope: Scope, content: bytes) -> bytes:
    """A body that can be served, its uploads by their paths.

    Raises:
        VitvizError: the fields are not those of the endpoint, or one is a file that was not uploaded.
    """
    called = CALL.search(scope["path"])
    if called is not None and b"json" not in dict(scope["headers"]).get(b"content-type", b""):
        raise _Refused(415, "expected JSON, with the header Content-Type: application/json")
    try:
        said = json.loads(content) if content else None
    except ValueError:
        if called is not None:
            raise _Refused(400, "the body is no JSON, or has a number of thousands of digits") from None
        # A form.
        return content
    except RecursionError:
        raise _Refused(400, TOO_DEEP) from None
    if any(depth > MOST_NESTED for depth, _ in _nested(said)):
        raise _Refused(400, TOO_DEEP)
    if called is not None and _is_for_programs(scope["app"].get_blocks(), called["way"], called["name"], said):
        files = [each for _, each in _nested(said) if isinstance(each, dict) and "path" in each]
        for each in files:
            each["path"] = str(upload_of(each).path)
        return json.dumps(said).encode() if files else content
    return content


def _nested(said: Any) -> Iterator[tuple[int, Any]]:
    """Every object and list of a JSON value, and how deep it lies; one level too many at most."""
    level, depth = [said], 0
    while level and depth <= MOST_NESTED:
        level = [each for each in level if isinstance(each, dict | list)]
        depth += 1
        yield from ((depth, each) for each in level)
        level = [child for each in level for child in (each.values() if isinstance(each, dict) else each)]


def _is_for_programs(blocks: gr.Blocks, way: str, name: str, said: Any) -> bool:
    """Whether a call is of a public endpoint, which it then can serve; of those of the page, Gradio knows."""
    public = {str(fn.api_name): fn for fn in blocks.fns.values() if fn.api_visibility == "public"}
    index = said.get("fn_index") if way in (QUEUE, *DIRECT) and isinstance(said, dict) else None
    if index is None:
        endpoint = public.get(name)
        if endpoint is None and way != QUEUE:
            raise _Refused(404, f"endpoint {shown(name)}: expected {choices(public)}")
    else:
        if not isinstance(index, int) or index not in blocks.fns:
            raise _Refused(404, f"fn_index = {shown(index)}: expected an endpoint by its name, {choices(public)}")
        endpoint = public.get(str(blocks.fns[index].api_name))
    if endpoint is None:
        return False
    if way in DIRECT:
        raise _Refused(404, f"/{endpoint.api_name}: expected a POST to /gradio_api/call/{endpoint.api_name}")
    parameters = list(signature(endpoint.fn).parameters.values()) if endpoint.fn else []
    (_check_names if way == BY_NAME else _check_values)(f"/{endpoint.api_name}", said, parameters)
    return True


def _check_names(endpoint: str, said: Any, parameters: Sequence[Parameter]) -> None:
    given = fields(endpoint, said, [parameter.name for parameter in parameters])
    missing = [part.name for part in parameters if part.default is Parameter.empty and part.name not in given]
    if missing:
        raise MethodError(f"{endpoint}: {listed(missing)} is missing")


def _check_values(endpoint: str, said: Any, parameters: Sequence[Parameter]) -> None:
    values = said.get("data") if isinstance(said, dict) else None
    if not isinstance(values, list) or len(values) != len(parameters):
        found = f"{len(values):,} values" if isinstance(values, list) else shown(values)
        names = ", ".join(parameter.name for parameter in parameters) or "none"
        raise MethodError(f"{endpoint}: data = {found}; expected a list of {len(parameters)}: {names}")
