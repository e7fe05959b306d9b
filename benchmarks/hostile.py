"""Hostile visitors: each sends one attack after another, none of which may disturb the app.

They attack only the app that the measurement itself has started.
"""

from __future__ import annotations

import asyncio
import io
import pickle
import secrets
import struct
import zipfile
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import cache

import httpx
import numpy as np
from PIL import Image

from benchmarks.visitor import API, VisitError, Visitor

COLLIDING_KEYS = 20_000


async def harm(visitor: Visitor, number: int) -> None:
    """Run all attacks, each visitor in another order. Any answer of the app is accepted."""
    for step in range(len(ATTACKS)):
        with suppress(VisitError, httpx.HTTPError):
            await ATTACKS[(number + step) % len(ATTACKS)](visitor)


@cache
def padded_jpeg() -> bytes:
    """Padding on which a careless scan takes quadratic time."""
    return b"\xff\xd8\xff\xe0\0\2" + b"\xff" * 400_000


@cache
def large_jpeg() -> bytes:
    """A picture of 64 million pixels."""
    stream = io.BytesIO()
    Image.fromarray(np.zeros((7990, 7990), np.uint8)).save(stream, "JPEG", quality=30)
    return stream.getvalue()


@cache
def colliding_pickle() -> bytes:
    """A checkpoint with a dictionary whose keys all have one hash."""
    keys = {number * (2**61 - 1) + 7: None for number in range(COLLIDING_KEYS)}
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(keys, 2))
        archive.writestr("archive/version", "3\n")
    return stream.getvalue()


def prepare() -> None:
    """Make every file before the visitors come, since making them blocks the event loop of all visitors."""
    for file in (padded_jpeg, large_jpeg, colliding_pickle):
        file()


async def _padded_jpeg(visitor: Visitor) -> None:
    await visitor.analyze(upload=await visitor.upload("padded.jpg", padded_jpeg()))


async def _large_picture(visitor: Visitor) -> None:
    """A picture of 64 million pixels, requested twelve times at once as a lossless file."""
    await visitor.analyze(upload=await visitor.upload("large.jpg", large_jpeg()))
    await _files(visitor, "picture", 12)


async def _pages(visitor: Visitor) -> None:
    """The whole explorer, eight times at once."""
    await _files(visitor, "page", 8)


async def _files(visitor: Visitor, name: str, count: int) -> None:
    requests = (visitor.file(name) for _ in range(count))
    await asyncio.gather(*requests, return_exceptions=True)


async def _colliding_keys(visitor: Visitor) -> None:
    await visitor.analyze(own={"files": [await visitor.upload("colliding.pth", colliding_pickle())]})


async def _expanding_checkpoint(visitor: Visitor) -> None:
    """A header that claims terabytes."""
    header = b'{"a":{"dtype":"F32","shape":[1048576,1048576],"data_offsets":[0,4398046511104]}}'
    content = struct.pack("<Q", len(header)) + header
    await visitor.analyze(own={"files": [await visitor.upload("expanding.safetensors", content)]})


async def _comparisons(visitor: Visitor) -> None:
    """Comparisons in quick succession, each from another page and cancelled at once."""
    for _ in range(6):
        visitor.page = secrets.token_urlsafe(16)
        request = asyncio.create_task(visitor.run("compare", uid=visitor.facts["uid"]))
        await asyncio.sleep(0.1)
        request.cancel()


async def _nested_body(visitor: Visitor) -> None:
    """Megabytes of nested lists, sent to the queue."""
    visitor.traffic.count()
    await visitor.client.post(
        f"{API}/queue/join", content=b"[" * 8_000_000, headers={"content-type": "application/json"}
    )


async def _broken_upload(visitor: Visitor) -> None:
    """An upload whose sender disconnects halfway."""

    async def half() -> object:
        yield b'--x\r\nContent-Disposition: form-data; name="files"; filename="a.png"\r\n\r\n' + bytes(2**20)
        raise ConnectionError

    visitor.traffic.count()
    with suppress(ConnectionError):
        await visitor.client.post(
            f"{API}/upload", content=half(), headers={"content-type": "multipart/form-data; boundary=x"}
        )


async def _many_sessions(visitor: Visitor) -> None:
    """Sessions without a page, which could evict those of other visitors."""
    for _ in range(60):
        visitor.traffic.count()
        body = {"data": [], "fn_index": 0, "session_hash": secrets.token_hex(8)}
        await visitor.client.post(f"{API}/queue/join", json=body)


ATTACKS: tuple[Callable[[Visitor], Awaitable[None]], ...] = (
    _padded_jpeg,
    _large_picture,
    _pages,
    _colliding_keys,
    _expanding_checkpoint,
    _comparisons,
    _nested_body,
    _broken_upload,
    _many_sessions,
)
