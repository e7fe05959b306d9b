"""Reading the bodies of requests within limits of size and time."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

from starlette.requests import Request
from starlette.types import Message, Receive

from vitviz.system.strangers import BODY_SECONDS, BYTES_A_SECOND, JSON_ITEMS
from vitviz.ui.server.rule import RequestError

NOT_JSON = "the body is no JSON, nests too deeply, or has a number of thousands of digits"
TOO_SLOW = f"the body comes too slowly: expected all of it within {BODY_SECONDS:g} s, and 1 s more for each 128 KiB"


class LimitedBody:
    """Receives a body up to a size.

    Args:
        receive: of the server.
        max_bytes: the largest body.
    """

    def __init__(self, receive: Receive, max_bytes: int) -> None:
        self._receive, self._max_bytes = receive, max_bytes
        self.received_bytes, self._waited = 0, 0.0
        self.is_complete = False

    def expect(self, nbytes: int) -> None:
        """Count bytes.

        Raises:
            RequestError: the body is too large with them.
        """
        if self.received_bytes + nbytes > self._max_bytes:
            raise RequestError(413, f"the body has more than {self._max_bytes:,} bytes")

    async def __call__(self) -> Message:
        """The next message.

        Raises:
            RequestError: the body is too large or too slow.
        """
        # After the body, the next message says that the client disconnected.
        if self.is_complete:
            return await self._receive()
        # What the server takes for its turn and for writing is none of the client's time.
        begun, left = time.monotonic(), BODY_SECONDS + self.received_bytes / BYTES_A_SECOND - self._waited
        try:
            message = await asyncio.wait_for(self._receive(), max(0.0, left))
        except asyncio.TimeoutError:
            raise RequestError(408, TOO_SLOW) from None
        self._waited += time.monotonic() - begun
        if message["type"] == "http.request":
            self.expect(len(message.get("body", b"")))
            self.received_bytes += len(message.get("body", b""))
            self.is_complete = not message.get("more_body", False)
        return message


async def read_json(receive: Receive) -> Any:
    """The JSON value of a body.

    Raises:
        RequestError: it is no JSON, or too large or too slow.
        ClientDisconnect: the client is gone.
    """
    content = bytearray()
    # A list of parts would weigh many times as much as a body that comes in small ones.
    async for part in Request({"type": "http"}, receive).stream():
        content += part
    # The pictures of a call by MCP are strings, of which each is one item.
    if sum(map(content.count, b"[{,")) > JSON_ITEMS:
        raise RequestError(413, f"the body has more than {JSON_ITEMS:,} items")
    try:
        return json.loads(content)
    # Invalid UTF-8 is a ValueError, too.
    except (ValueError, RecursionError):
        raise RequestError(400, NOT_JSON) from None


def replayed(content: bytes, receive: Receive) -> Receive:
    """A receive function that gives a body that was read before, and then the server's messages."""
    messages: list[Message] = [{"type": "http.request", "body": content, "more_body": False}]

    async def next_message() -> Message:
        return messages.pop() if messages else await receive()

    return next_message
