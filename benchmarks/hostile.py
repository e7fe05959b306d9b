"""Hostile visitors: each sends one attack after another, none of which may disturb the app.

They attack only the app that :mod:`benchmarks.load` has started, from a process of their own with the lowest priority:
their own work would take place on other machines.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from functools import cache, partial
from itertools import count
from multiprocessing.synchronize import Semaphore
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np
from PIL import Image

from benchmarks.visitor import API, Traffic, VisitError, Visitor
from tests.support.clips import write_clip
from tests.support.image_files import encoded
from vitviz.ui.server.connections import raise_descriptors

CLIP_FRAMES, CLIP_SIZE = 900, (640, 360)
# What one attack sends at once, and how long connections stay idle.
MANY, IDLE_SECONDS = 150, 5.0


@cache
def files() -> dict[str, bytes]:
    """What they upload."""
    picture, frame = Image.fromarray(np.zeros((7990, 7990), np.uint8)), np.zeros((*CLIP_SIZE[::-1], 3), np.uint8)
    with TemporaryDirectory() as name:
        clip = Path(name) / "clip.mp4"
        write_clip(clip, rate=30, codec="mpeg4", frames=[frame] * CLIP_FRAMES)
        return {
            # Padding on which a careless scan takes quadratic time; 64 million pixels; a clip of half a minute.
            "padded.jpg": b"\xff\xd8\xff\xe0\0\2" + b"\xff" * 400_000,
            "large.jpg": encoded(picture, "JPEG", quality=30),
            "clip.mp4": clip.read_bytes(),
        }


async def _picture(name: str, visitor: Visitor) -> None:
    await visitor.analyze(upload=await visitor.upload(name, files()[name]))


async def _file(name: str, times: int, visitor: Visitor) -> None:
    await _at_once(times, lambda: visitor.file(name))


async def _at_once(times: int, request: Callable[[], Awaitable[object]]) -> None:
    await asyncio.gather(*(request() for _ in range(times)), return_exceptions=True)


async def _on_another_page(visitor: Visitor, kind: str, **request: Any) -> None:
    body = {"page": secrets.token_urlsafe(16), "number": 0, "kind": kind, **request}
    await visitor.request("POST", "/run", json=body)


async def _comparisons(visitor: Visitor) -> None:
    """Comparisons in quick succession, each from another page and cancelled at once."""
    for _ in range(6):
        with suppress(asyncio.TimeoutError, VisitError, httpx.HTTPError):
            await asyncio.wait_for(_on_another_page(visitor, "compare", uid=visitor.facts["uid"]), 0.1)


async def _short_requests(visitor: Visitor) -> None:
    """Maps that are answered at once."""
    body = {
        "uid": visitor.facts["uid"],
        "method": "rollout",
        "parameters": {"discard_ratio": 0.9, "head_fusion": "max"},
    }
    await _at_once(MANY, lambda: visitor.request("POST", "/map", json=body))


async def _refused(visitor: Visitor) -> None:
    """Tiny uploads that are no pictures, and as many checkpoints, which nobody may open."""

    async def attack() -> None:
        upload = await visitor.upload("tiny.png", b"1")
        with suppress(VisitError):
            await visitor.analyze(upload=upload)
        await _on_another_page(visitor, "analyze", state=visitor.state, index=0, own={"files": [upload]})

    await _at_once(MANY, attack)


async def _full_disk(visitor: Visitor) -> None:
    """More than the app may keep on disk."""
    for _ in range(8):
        await visitor.upload("large.bin", bytes(2**26))


async def _idle_connections(visitor: Visitor) -> None:
    """Connections of this visitor alone, more than one may have, that send nothing."""
    parts = urlsplit(visitor.traffic.address)
    async with AsyncExitStack() as stack:
        for _ in range(4 * MANY):
            await visitor.traffic.count()
            _, writer = await asyncio.open_connection(parts.hostname, parts.port, local_addr=(visitor.address, 0))
            stack.callback(writer.close)
        await asyncio.sleep(IDLE_SECONDS)


async def _nested_body(visitor: Visitor) -> None:
    """Megabytes of nested lists, sent to the queue."""
    await visitor.client.post(
        f"{API}/queue/join", content=b"[" * 8_000_000, headers={"content-type": "application/json"}
    )


async def _broken_upload(visitor: Visitor) -> None:
    """An upload whose sender disconnects halfway."""

    async def half() -> AsyncIterator[bytes]:
        yield b'--x\r\nContent-Disposition: form-data; name="files"; filename="a.png"\r\n\r\n' + bytes(2**20)
        raise ConnectionError

    await visitor.client.post(
        f"{API}/upload", content=half(), headers={"content-type": "multipart/form-data; boundary=x"}
    )


async def _many_sessions(visitor: Visitor) -> None:
    """Sessions without a page, which could evict those of other visitors."""
    for _ in range(60):
        body = {"data": [], "fn_index": 0, "session_hash": secrets.token_hex(8)}
        await visitor.client.post(f"{API}/queue/join", json=body)


ATTACKS: dict[str, Callable[[Visitor], Awaitable[object]]] = {
    "padded": partial(_picture, "padded.jpg"),
    "large": partial(_picture, "large.jpg"),
    # Of the large picture, as lossless files, and the whole explorer.
    "lossless": partial(_file, "picture", 12),
    "pages": partial(_file, "page", 8),
    "clip": partial(_picture, "clip.mp4"),
    "comparisons": _comparisons,
    "maps": _short_requests,
    "refused": _refused,
    "disk": _full_disk,
    "idle": _idle_connections,
    "nested": _nested_body,
    "broken": _broken_upload,
    "sessions": _many_sessions,
}


async def _attacks(traffic: Traffic, number: int, names: Sequence[str], ready: Semaphore) -> None:
    """A visitor with their own order of attacks; any answer of the app is accepted."""
    with suppress(VisitError, httpx.HTTPError):
        async with Visitor.visiting(traffic) as visitor:
            ready.release()
            for step in range(len(names)):
                with suppress(VisitError, httpx.HTTPError, OSError):
                    await ATTACKS[names[(number + step) % len(names)]](visitor)


def attack(traffic: Traffic, visitors: int, names: Sequence[str], ready: Semaphore) -> None:
    """Let so many hostile visitors come, each of whom releases a semaphore when they are there."""
    os.nice(19)
    raise_descriptors()
    files()
    numbers = count()
    asyncio.run(_at_once(visitors, lambda: _attacks(traffic, next(numbers), names, ready)))
