"""Reading the bodies of requests within limits of size and depth."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from typing import Any

from vitviz.ui.server.quota import RequestError

# The ASGI specification, version 3.
Message = dict[str, Any]
Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

# Nested objects and lists; and values of a body, which take much more memory than their text.
MAX_DEPTH, MAX_VALUES = 32, 2**16
NOT_JSON = "the body is no JSON, or has a number of thousands of digits"
TOO_DEEP = f"the body is no JSON, or has lists or objects more than {MAX_DEPTH} deep in each other"


class LimitedBody:
    """Receives a body up to a size.

    Args:
        receive: of the server.
        max_bytes: the largest body.
        advice: an alternative, at the end of the message.
    """

    def __init__(self, receive: Receive, max_bytes: int, advice: str = "") -> None:
        self._receive, self._max_bytes, self._advice = receive, max_bytes, advice
        self.received_bytes = 0
        self.is_complete = False
        self.is_disconnected = False
        self.error: RequestError | None = None

    def expect(self, nbytes: int) -> None:
        """Count bytes.

        Raises:
            RequestError: the body is too large with them.
        """
        if self.received_bytes + nbytes > self._max_bytes:
            self.error = RequestError(413, f"the body has more than {self._max_bytes:,} bytes{self._advice}")
            raise self.error

    async def __call__(self) -> Message:
        """The next message.

        Raises:
            RequestError: the body is too large.
        """
        if self.error is not None:
            raise self.error
        # After the body, the next message says that the client disconnected.
        if self.is_complete:
            return await self._receive()
        message = await self._receive()
        if message["type"] == "http.request":
            self.expect(len(message.get("body", b"")))
            self.received_bytes += len(message.get("body", b""))
            self.is_complete = not message.get("more_body", False)
        else:
            self.is_disconnected = True
        return message


async def read_body(body: LimitedBody, take: Callable[[int], None]) -> bytes:
    """The whole body.

    Args:
        body: of the request.
        take: reserves this many bytes.

    Raises:
        RequestError: the body is too large, or too many bodies are in memory.
        ConnectionError: the client disconnected.
    """
    content = bytearray()
    while not body.is_complete:
        message = await body()
        if message["type"] != "http.request":
            raise ConnectionError("the client went away")
        take(len(message.get("body", b"")))
        content += message.get("body", b"")
    return bytes(content)


def parse_json(content: bytes) -> Any:
    """The JSON value of a body.

    Raises:
        RequestError: it is no JSON, nests too deeply, or has too many values.
    """
    if sum(map(content.count, (b",", b"[", b"{"))) > MAX_VALUES:
        raise RequestError(413, f"the body has more than {MAX_VALUES:,} commas and brackets")
    try:
        value = json.loads(content)
    # Invalid UTF-8 is a ValueError, too.
    except ValueError:
        raise RequestError(400, NOT_JSON) from None
    except RecursionError:
        raise RequestError(400, TOO_DEEP) from None
    level, depth = [value], 0
    while level := [each for each in level if isinstance(each, dict | list)]:
        depth += 1
        if depth > MAX_DEPTH:
            raise RequestError(400, TOO_DEEP)
        level = [item for each in level for item in (each.values() if isinstance(each, dict) else each)]
    return value


def replayed(content: bytes, receive: Receive) -> Receive:
    """A receive function that gives a body that was read before, and then the server's messages."""
    messages: list[Message] = [{"type": "http.request", "body": content, "more_body": False}]

    async def next_message() -> Message:
        return messages.pop() if messages else await receive()

    return next_message


def declared_bytes(scope: Scope) -> int:
    """The Content-Length of a request; 0 if it states none.

    Raises:
        RequestError: it is no number.
    """
    lengths = {value for name, value in scope["headers"] if name == b"content-length"}
    if not lengths:
        return 0
    if len(lengths) > 1 or re.fullmatch(rb"\d{1,18}", min(lengths)) is None:
        raise RequestError(400, "Content-Length: expected one number")
    return int(min(lengths))
