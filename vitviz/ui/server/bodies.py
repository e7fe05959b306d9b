"""Reading the bodies of requests within limits of size and depth."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np

# The ASGI specification, version 3.
Message = dict[str, Any]
Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Result = TypeVar("Result")

# Nested objects and lists.
MAX_DEPTH = 32
NOT_JSON = "the body is no JSON, or has a number of thousands of digits"
TOO_DEEP = f"the body is no JSON, or has lists or objects more than {MAX_DEPTH} deep in each other"
# A tool call, without its strings: a picture is one string.
MAX_STRUCTURE_BYTES = 2**18
# Larger bodies are parsed and checked in a thread, since the event loop serves everybody.
INLINE_BYTES = 2**16
# A client may lose the response if the connection closes while it still sends the body.
LINGER_SECONDS = 2.0
# Bodies in memory, of all visitors and of one.
MAX_HELD_BYTES, MAX_HELD_BYTES_PER_VISITOR = 2**26, 2**25


class RequestError(Exception):
    """A refused request.

    Args:
        status: the HTTP status.
        reason: one sentence.
    """

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class HeldBodies:
    """Counts the bytes of the bodies that are in memory. For one event loop."""

    def __init__(self) -> None:
        self._held: Counter[str] = Counter()

    @contextmanager
    def of(self, visitor: str) -> Iterator[Callable[[int], None]]:
        """The time in which a visitor's body is in memory.

        Yields:
            A function to be called with the number of bytes before they are read; it raises RequestError above limits.
        """
        body_bytes = 0

        def take(nbytes: int) -> None:
            nonlocal body_bytes
            if self._held[visitor] + nbytes > MAX_HELD_BYTES_PER_VISITOR:
                reason = f"your requests that are answered now have more than {MAX_HELD_BYTES_PER_VISITOR:,} bytes"
                raise RequestError(429, f"{reason}: wait for them first")
            if self._held.total() + nbytes > MAX_HELD_BYTES:
                raise RequestError(503, "too many large requests are answered now: try again in a moment")
            self._held[visitor] += nbytes
            body_bytes += nbytes

        try:
            yield take
        finally:
            self._held[visitor] -= body_bytes
            self._held += Counter()


class DepthScanner:
    """Counts the nesting depth of JSON in one pass, without parsing it.

    Args:
        max_structure_bytes: the limit of bytes outside strings.
    """

    _ESCAPE = re.compile(rb"\\.", re.DOTALL)
    _NO_BRACKETS = bytes(code for code in range(256) if code not in b"[]{}")
    # As int8: an opening bracket is +1, a closing one -1.
    _STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")

    def __init__(self, max_structure_bytes: int | None = None) -> None:
        self._max_structure_bytes = max_structure_bytes
        self._structure_bytes = 0
        self._depth = 0
        self._in_string = self._in_escape = False

    def feed(self, content: bytes) -> None:
        """Scan the next bytes of the body.

        Raises:
            RequestError: they nest too deeply, or have too many bytes outside strings.
        """
        # The parser stops at a backslash outside a string, so that the rest need not be counted.
        content = self._ESCAPE.sub(b"", b"\\" + content if self._in_escape else content)
        self._in_escape = content.endswith(b"\\")
        segments = content.split(b'"')
        outside = b"".join(segments[self._in_string :: 2])
        self._in_string ^= len(segments) % 2 == 0
        self._structure_bytes += len(outside) + len(segments) - 1
        if self._max_structure_bytes is not None and self._structure_bytes > self._max_structure_bytes:
            raise RequestError(413, f"the body has more than {self._max_structure_bytes:,} bytes outside its strings")
        steps = np.frombuffer(outside.translate(self._STEPS, self._NO_BRACKETS), np.int8)
        if len(steps):
            depths = self._depth + np.cumsum(steps, dtype=np.int64)
            self._depth = int(depths[-1])
            if depths.max() > MAX_DEPTH or depths.min() < 0:
                raise RequestError(400, TOO_DEEP)


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

    def check(self, declared_bytes: int | None) -> None:
        """Refuse a body whose declared length is too large.

        Raises:
            RequestError: it is.
        """
        if declared_bytes is not None and declared_bytes > self._max_bytes:
            raise self._too_large()

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
            self.received_bytes += len(message.get("body", b""))
            self.is_complete = not message.get("more_body", False)
            if self.received_bytes > self._max_bytes:
                raise self._too_large()
        else:
            self.is_disconnected = True
        return message

    def _too_large(self) -> RequestError:
        self.error = RequestError(413, f"the body has more than {self._max_bytes:,} bytes{self._advice}")
        return self.error


async def read_json(body: LimitedBody, scanner: DepthScanner, take: Callable[[int], None]) -> bytes:
    """The whole body, scanned as it arrives.

    Args:
        body, scanner: of the request.
        take: reserves this many bytes.

    Raises:
        RequestError: the body is too large or too deep, or too many bodies are in memory.
        ConnectionError: the client disconnected.
    """
    content = bytearray()
    while not body.is_complete:
        message = await body()
        if message["type"] != "http.request":
            raise ConnectionError("the client went away")
        scanner.feed(message.get("body", b""))
        take(len(message.get("body", b"")))
        content += message.get("body", b"")
    return bytes(content)


async def run_off_loop(nbytes: int, function: Callable[[], Result]) -> Result:
    """The result of a function, called in a thread if it handles many bytes."""
    return await asyncio.to_thread(function) if nbytes > INLINE_BYTES else function()


def parse_json(content: bytes) -> Any:
    """The JSON value of a body.

    Raises:
        RequestError: it is no JSON.
    """
    try:
        return json.loads(content)
    # Invalid UTF-8 is a ValueError, too.
    except ValueError:
        raise RequestError(400, NOT_JSON) from None
    except RecursionError:
        raise RequestError(400, TOO_DEEP) from None


def replayed(content: bytes, receive: Receive) -> Receive:
    """A receive function that gives a body that was read before, and then the server's messages."""
    messages: list[Message] = [{"type": "http.request", "body": content, "more_body": False}]

    async def next_message() -> Message:
        return messages.pop() if messages else await receive()

    return next_message


def declared_bytes(scope: Scope) -> int | None:
    """The Content-Length of a request, or None.

    Raises:
        RequestError: it is no number.
    """
    lengths = {value for name, value in scope["headers"] if name == b"content-length"}
    if not lengths:
        return None
    if len(lengths) > 1 or re.fullmatch(rb"\d{1,18}", min(lengths)) is None:
        raise RequestError(400, "Content-Length: expected one number")
    return int(min(lengths))


async def linger(receive: Receive) -> None:
    """Discard for a moment what the client still sends."""

    async def discard() -> None:
        while True:
            message = await receive()
            if message["type"] != "http.request" or not message.get("more_body", False):
                return

    try:
        await asyncio.wait_for(discard(), LINGER_SECONDS)
    except (TimeoutError, asyncio.TimeoutError):
        return
