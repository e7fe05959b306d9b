"""The outermost layer of the app: refuses in one sentence what is not served, and passes on the rest."""

from __future__ import annotations

import errno
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from typing import Any
from urllib.parse import parse_qs, urlsplit

import gradio as gr
from gradio import routes as gradio_routes

from vitviz.errors.kinds import VitvizError
from vitviz.ui.server.answers import Answers
from vitviz.ui.server.bodies import (
    MAX_STRUCTURE_BYTES,
    App,
    DepthScanner,
    HeldBodies,
    LimitedBody,
    Message,
    Receive,
    RequestError,
    Scope,
    Send,
    declared_bytes,
    linger,
    parse_json,
    read_json,
    replayed,
    run_off_loop,
)
from vitviz.ui.server.calls import ANSWER, CALL, CheckedCall, check_json
from vitviz.ui.server.fair_queue import share_fairly
from vitviz.ui.server.fetching import REFUSED, forbid_fetching
from vitviz.ui.server.headers import ResponseHeaders
from vitviz.ui.server.hosts import HostRules, visitor_key
from vitviz.ui.server.log import INTERNAL_ERROR, LOGGER, place_of, quieten_gradio
from vitviz.ui.server.routes import (
    ANSWERS,
    FILE,
    HEALTH,
    JOIN,
    UPLOAD,
    Body,
    Route,
    find_route,
    is_local_file,
)

NO_ROUTE = "this app has no such route"
# The headers and separators of a multipart form.
FORM_BYTES = 2**16
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# Gradio's own FastAPI.
_gradio: Any = gradio_routes
HTTPException = _gradio.fastapi.HTTPException
RequestValidationError = _gradio.fastapi.exceptions.RequestValidationError
Health = Callable[[gr.Blocks], dict[str, str]]
PageApp = Callable[[Scope, Receive, Send, gr.Blocks], Awaitable[None]]


class RequestFilter:
    """ASGI middleware in front of everything that Gradio serves.

    Args:
        app: the application behind it.
        page: answers the routes of the page; takes the blocks, too.
        blocks: Gradio's app.
        rules: the hosts and origins that are served.
        health: the answer of :data:`vitviz.ui.server.routes.HEALTH`.
        max_upload_bytes: the largest upload.
    """

    def __init__(
        self, app: App, page: PageApp, blocks: gr.Blocks, rules: HostRules, health: Health, max_upload_bytes: int
    ) -> None:
        self._app, self._page, self._blocks, self._rules, self._health = app, page, blocks, rules, health
        self._max_upload_bytes = max_upload_bytes
        self._headers = ResponseHeaders(rules.frames)
        self._answers = Answers(blocks)
        self._bodies = HeldBodies()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await self._serve(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = _path(scope)
        answer = _Answer(send, path, self._headers)
        limit = LimitedBody(receive, 0)
        route: Route | None = None
        try:
            route = find_route(scope["method"], path, tools=getattr(self._blocks, "mcp_server", False))
            if route is None:
                raise RequestError(404, NO_ROUTE)
            scope = self._rules.admit(scope)
            if route.max_bytes != 0:
                self._rules.check_origin(scope)
                limit = self._body(scope, route, receive)
            if path == HEALTH:
                await answer.json(200, self._health(self._blocks))
            elif path.startswith(FILE) and not is_local_file(path):
                raise RequestError(403, REFUSED)
            else:
                await self._pass(scope, route, path, limit, receive, answer)
        except Exception as error:
            # The client is gone.
            if limit.is_disconnected:
                return
            await self._fail(limit.error or error, route, path, receive, answer)

    def _body(self, scope: Scope, route: Route, receive: Receive) -> LimitedBody:
        """The body of a request, refused if its declared length is too large."""
        if route.max_bytes is None:
            max_bytes, advice = self._max_upload_bytes + FORM_BYTES, ""
        else:
            max_bytes, advice = route.max_bytes, f"; files go to {UPLOAD}"
        body = LimitedBody(receive, max_bytes, advice)
        body.check(declared_bytes(scope))
        return body

    async def _pass(
        self, scope: Scope, route: Route, path: str, body: LimitedBody, receive: Receive, answer: _Answer
    ) -> None:
        visitor = visitor_key(scope["client"][0] if scope["client"] else "")
        if route.is_page and route.body is not Body.JSON:
            await self._page(
                {**scope, "path": path}, receive if route.body is Body.NONE else body, answer.send, self._blocks
            )
        elif route.body is Body.NONE:
            await self._pass_bodyless(scope, path, visitor, receive, answer)
        else:
            await self._pass_content(scope, route, path, visitor, body, receive, answer)
        await answer.finish()

    async def _pass_bodyless(self, scope: Scope, path: str, visitor: str, receive: Receive, answer: _Answer) -> None:
        """Pass a request without its body, which is dropped with the connection."""
        call = ANSWER.fullmatch(path)
        with ExitStack() as stack:
            if call is not None:
                stack.enter_context(self._answers.reading(visitor, event=call["event"]))
            elif path == ANSWERS:
                session = parse_qs(scope["query_string"].decode("latin-1")).get("session_hash", [""])[0]
                stack.enter_context(self._answers.reading(visitor, session=session))
            await self._app(scope, replayed(b"", receive), answer.send)

    async def _pass_content(
        self, scope: Scope, route: Route, path: str, visitor: str, body: LimitedBody, receive: Receive, answer: _Answer
    ) -> None:
        """Read a request's body, check it, and pass it on."""
        if route.body is Body.JSON and not _is_json(scope):
            raise RequestError(415, "expected JSON, with the header Content-Type: application/json")
        scanner = DepthScanner(MAX_STRUCTURE_BYTES if route.body is Body.TOOL else None)
        with ExitStack() as stack:
            content = await read_json(body, scanner, stack.enter_context(self._bodies.of(visitor)))
            if route.is_page:
                await run_off_loop(len(content), partial(parse_json, content))
                stack.close()
                return await self._page({**scope, "path": path}, replayed(content, receive), answer.send, self._blocks)
            if route.body is Body.JSON:
                call = await run_off_loop(len(content), partial(self._checked, path, content))
                content = call.content
                if path == JOIN or CALL.fullmatch(path):
                    answer.before_body = stack.enter_context(self._answers.asking(visitor, call.session))
            await self._app(scope, replayed(content, receive), answer.send)

    def _checked(self, path: str, content: bytes) -> CheckedCall:
        return check_json(self._blocks, path, content, parse_json(content) if content else None)

    async def _fail(self, error: Exception, route: Route | None, path: str, receive: Receive, answer: _Answer) -> None:
        status, reason = _explained(error)
        if status >= 500 and not isinstance(error, RequestError):
            LOGGER.error("%s: %s", "a request" if route is None else route.pattern, place_of(error))
        if answer.is_started:
            await answer.end()
        elif route is not None and path == JOIN and status in (400, 404):
            # Gradio's clients show only messages of this form.
            detail = {"__type__": "validate", "is_valid": False, "parameter_name": "request", "message": reason}
            await answer.json(422, {"detail": [detail]})
        else:
            await answer.refuse(status, reason, receive)


class _Answer:
    """A response that gets our headers; Starlette's response to an unexpected error is held back."""

    def __init__(self, send: Send, path: str, headers: ResponseHeaders) -> None:
        self._send, self._path, self._headers = send, path, headers
        self._held: list[Message] = []
        self._is_complete = False
        self.is_started = False
        self.before_body: Callable[[bytes], None] = lambda content: None

    async def send(self, message: Message) -> None:
        # Starlette sends a response with status 500, and then raises the error.
        if self._held or (message["type"] == "http.response.start" and message["status"] == 500):
            self._held.append(message)
            return
        await self._forward(message)

    async def finish(self) -> None:
        """Send what was held back: the app raised nothing, so that the response is its own."""
        held, self._held = self._held, []
        for message in held:
            await self._forward(message)

    async def json(self, status: int, value: Any, *extra: tuple[bytes, bytes], is_last: bool = True) -> None:
        content = json.dumps(value).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode()), *extra]
        await self._forward({"type": "http.response.start", "status": status, "headers": headers})
        await self._forward({"type": "http.response.body", "body": content, "more_body": not is_last})

    async def refuse(self, status: int, reason: str, receive: Receive) -> None:
        """Send the reason, and close the connection, on which a body may still be arriving."""
        await self.json(status, {"detail": reason}, (b"connection", b"close"), is_last=False)
        if status in (403, 413, 415):
            await linger(receive)
        await self.end()

    async def end(self) -> None:
        """End a response that has begun, complete or not."""
        if not self._is_complete:
            await self._forward({"type": "http.response.body", "body": b"", "more_body": False})

    async def _forward(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.is_started = True
            message = self._headers.secured(message, self._path)
        elif message["type"] == "http.response.body":
            self._is_complete = not message.get("more_body", False)
            self.before_body(message.get("body", b""))
        await self._send(message)


def _path(scope: Scope) -> str:
    """The path below the app's root; a proxy may pass on the whole path or only this part."""
    root = urlsplit(scope.get("root_path", "")).path.rstrip("/")
    path: str = scope["path"]
    return path.removeprefix(root) if root and path.startswith(f"{root}/") else path


def _is_json(scope: Scope) -> bool:
    content_types = [value for name, value in scope["headers"] if name == b"content-type"]
    return len(content_types) == 1 and b"json" in content_types[0]


def _explained(error: BaseException) -> tuple[int, str]:
    """The status of an error and one sentence."""
    if isinstance(error, RequestError):
        return error.status, str(error)
    if isinstance(error, VitvizError):
        return 400, str(error)
    if isinstance(error, HTTPException):
        return error.status_code, str(error.detail)
    # Starlette wraps it when the response has begun.
    if isinstance(error, RuntimeError) and isinstance(error.__cause__, HTTPException):
        return _explained(error.__cause__)
    if isinstance(error, OSError) and error.errno in DISK_FULL:
        return 507, "this server has no room for it now"
    if isinstance(error, PermissionError) and str(error) == REFUSED:
        return 400, REFUSED
    return 500, INTERNAL_ERROR


async def _invalid(*_: object) -> Any:
    """Replaces FastAPI's response, which quotes the request."""
    return _gradio.JSONResponse({"detail": "a field of this request is missing, or of another type than expected"}, 422)


def app_options(
    page: Callable[[gr.Blocks], PageApp], health: Health, rules: HostRules, max_upload_bytes: int
) -> dict[str, Any]:
    """Gradio's ``app_kwargs`` that put the app behind a :class:`RequestFilter`; ``page`` makes the page of an app."""

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        blocks = app.get_blocks()
        share_fairly(blocks._queue)
        # Gradio adds its own middleware in front of any in app_kwargs.
        app.middleware_stack = RequestFilter(
            app.middleware_stack, page(blocks), blocks, rules, health, max_upload_bytes
        )
        yield

    forbid_fetching()
    quieten_gradio()
    return {"lifespan": lifespan, "exception_handlers": {RequestValidationError: _invalid}}
