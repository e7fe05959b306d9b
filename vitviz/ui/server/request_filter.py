"""The outermost layer of the app: refuses in one sentence what is not served, and passes on the rest."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack
from typing import Any
from urllib.parse import parse_qs, urlsplit

import gradio as gr
from gradio.context import LocalContext
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vitviz.attribution.json_values import fields
from vitviz.ui.server.bodies import LimitedBody, read_json, replayed
from vitviz.ui.server.explanations import refusal
from vitviz.ui.server.headers import ResponseHeaders
from vitviz.ui.server.hosts import HostRules
from vitviz.ui.server.log import LOGGER, place_of
from vitviz.ui.server.program_calls import CALL, checked_call, session_of
from vitviz.ui.server.routes import EVENT_STREAM, JOIN, PREFIX, Body, Route, find_route
from vitviz.ui.server.rule import RequestError, UnderWay
from vitviz.ui.server.tools import with_uploads
from vitviz.ui.server.unread_replies import UnreadReplies
from vitviz.ui.server.visitor_files import Folder

# The headers and separators of a multipart form.
FORM_BYTES = 2**16
# An answer is sent in parts of this size.
PART_BYTES = 2**16
# The share of a body that counts in memory: an upload goes to the disk, and of pictures as text, less is made than of
# many items.
SHARES = {Body.JSON: 1.0, Body.TOOL: 1 / 16, Body.UPLOAD: 0.0}
# Where a program reads the answer to a call by plain HTTP.
EVENT = re.compile(rf"{PREFIX}/call/(?:v2/)?[^/]+/(?P<event>[^/]+)")


class RequestFilter:
    """ASGI middleware in front of the app.

    Args:
        app: the application behind it.
        blocks: Gradio's app.
        rules: the hosts and origins that are served.
        under_way: the requests of each visitor.
        folder: of the visitors' files.
        max_upload_bytes: the largest upload.
    """

    def __init__(
        self,
        app: ASGIApp,
        blocks: gr.Blocks,
        rules: HostRules,
        under_way: UnderWay,
        folder: Folder,
        max_upload_bytes: int,
    ) -> None:
        self._app, self._blocks, self._rules, self._under_way, self._folder = app, blocks, rules, under_way, folder
        self._max_upload_bytes = max_upload_bytes
        self._headers = ResponseHeaders(rules.frames)
        self._unread_replies = UnreadReplies(blocks._queue)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await (self._serve if scope["type"] == "http" else self._app)(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = _path(scope)
        answer = _Answer(send, path, self._headers)
        route = find_route(scope["method"], path, api=bool(self._blocks.fns), tools=self._blocks.mcp_server)
        # Of the body, in memory.
        nbytes = 0
        try:
            if route is None:
                raise RequestError(404, "this app has no such route")
            scope = {**self._rules.admit(scope), "path": path}
            if route.body is not Body.NONE:
                self._rules.check_origin(scope)
                most = self._max_upload_bytes + FORM_BYTES if route.body is Body.UPLOAD else route.body.value
                body = LimitedBody(receive, most)
                # The server itself has checked that it is a number.
                length = int(dict(scope["headers"]).get(b"content-length", most))
                body.expect(length)
                receive, nbytes = body, int(SHARES[route.body] * length)
            LocalContext.blocks.set(self._blocks)
            with self._under_way.counted(scope["client"][0], nbytes):
                await self._pass(scope, route, receive, answer)
        except ClientDisconnect:
            return
        except Exception as error:
            response = refusal(error, is_call=route is not None and path == JOIN)
            if response.status_code == 500:
                LOGGER.error("%s: %s", "a request" if route is None else route.pattern, place_of(error))
            if not answer.is_started:
                # The server discards what still arrives of the body.
                await response(scope, receive, answer.send)
            elif not answer.has_length:
                await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _pass(self, scope: Scope, route: Route, receive: Receive, answer: _Answer) -> None:
        """Check a request, and have the app answer it; a short one in its turn, which its response ends."""
        with ExitStack() as stack:
            if route.body is Body.NONE:
                if key := _answer_key(scope):
                    stack.enter_context(self._unread_replies.reading(key))
            elif route.body is not Body.UPLOAD:
                content = await self._checked(scope, route, receive, answer, stack)
                headers = [pair for pair in scope["headers"] if pair[0] != b"content-length"]
                scope = {**scope, "headers": [*headers, (b"content-length", str(len(content)).encode())]}
                receive = replayed(content, receive)
            # Places, and the quota of a GPU that is lent, go by the request, which Gradio sets for its own events only.
            LocalContext.request.set(Request(scope))  # type: ignore[arg-type]
            async with AsyncExitStack() as turn:
                if route.is_short:
                    await turn.enter_async_context(self._under_way.place(scope["client"][0]))
                    answer.when_started = turn.aclose
                await self._app(scope, receive, answer.send)

    async def _checked(self, scope: Scope, route: Route, receive: Receive, answer: _Answer, stack: ExitStack) -> bytes:
        """The JSON of a request, as the app reads it. Whoever waits keeps the text alone."""
        value = await read_json(receive)
        if route.body is Body.TOOL:
            # A picture is decoded and written.
            value = await asyncio.to_thread(with_uploads, value, self._folder)
        elif match := CALL.fullmatch(scope["path"]):
            value, session = checked_call(self._blocks, match, value)
            expect = stack.enter_context(self._unread_replies.asking(scope["client"][0]))
            answer.when_accepted = lambda event: expect(session or event, event)
        elif scope["path"].startswith(PREFIX):
            # Gradio's refusal of a cancellation would repeat its values, which JSON may not have.
            for name, each in fields("the request", value, ("event_id", "session_hash", "fn_index")).items():
                session_of(str(each) if type(each) is int else each, name)
        return json.dumps(value).encode()


class _Answer:
    """A response that gets our headers.

    Args:
        send: of the server.
        path: of the request.
        headers: ours.
    """

    def __init__(self, send: Send, path: str, headers: ResponseHeaders) -> None:
        self._send, self._path, self._headers = send, path, headers
        self.is_started = self.has_length = False
        # Called with the event of a call that Gradio has accepted.
        self.when_accepted: Any = None
        # Called when the response starts.
        self.when_started: Callable[[], Awaitable[None]] | None = None

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.is_started = True
            if self.when_started is not None:
                await self.when_started()
            self.has_length = any(name.lower() == b"content-length" for name, _ in message.get("headers", []))
            if message["status"] != 200:
                self.when_accepted = None
            message = self._headers.secured(message, self._path)
        elif self.when_accepted is not None:
            self.when_accepted(json.loads(message["body"])["event_id"])
            self.when_accepted = None
        elif not message.get("more_body"):
            # Each part waits until those before are taken, and so the request counts until then.
            body = message.get("body", b"")
            for start in range(0, len(body), PART_BYTES):
                await self._send({**message, "body": body[start : start + PART_BYTES], "more_body": True})
            message = {"type": message["type"], "body": b"", "more_body": False}
        await self._send(message)


def _path(scope: Scope) -> str:
    """The path below the app's root; a proxy may pass on the whole path or only this part."""
    path, root = str(scope["path"]), urlsplit(scope.get("root_path", "")).path.rstrip("/")
    return path.removeprefix(root) if root and path.startswith(f"{root}/") else path


def _answer_key(scope: Scope) -> str:
    """The session or the event whose answers a request reads; empty for another request."""
    if scope["path"] == EVENT_STREAM:
        return session_of(parse_qs(scope["query_string"].decode("latin-1")).get("session_hash", [None])[0])
    event = EVENT.fullmatch(scope["path"])
    return "" if event is None else event["event"]
