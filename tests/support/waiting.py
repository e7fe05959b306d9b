"""Waiting for what happens, with a limit that only a hang reaches, and clocks that a test moves on itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

HANG_SECONDS = 300.0
# short: how often something is looked at, which decides about nothing.
LOOK_SECONDS = 0.02


def wait_until(condition: Callable[[], Any]) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + HANG_SECONDS
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(LOOK_SECONDS)


async def until(condition: Callable[[], Any]) -> None:
    """Wait until a condition holds, while the event loop goes on."""
    end = time.monotonic() + HANG_SECONDS
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        await asyncio.sleep(LOOK_SECONDS)


class LoopClock:
    """The time of an event loop, ahead of the true one by what a test adds.

    Args:
        loop: the event loop.
        patch: a ``MonkeyPatch``, which takes the addition back.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, patch: Any) -> None:
        self.loop, self.ahead, true_time = loop, 0.0, loop.time
        patch.setattr(loop, "time", lambda: true_time() + self.ahead)

    def advance(self, seconds: float) -> None:
        """Let time pass, for this loop only."""
        self.ahead += seconds
        # A loop that sleeps would not notice.
        self.loop.call_soon_threadsafe(lambda: None)
