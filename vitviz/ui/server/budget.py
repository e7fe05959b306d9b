"""The memory budget of the server: work that needs much memory takes its share before it begins."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from vitviz.errors.kinds import ConfigError, LimitError
from vitviz.system.machine import memory
from vitviz.ui.server.fair_lock import POLL_SECONDS, FairOrder, Ticket, current_visitor
from vitviz.ui.server.settings import PREFIX, ServerSettings

# The share of the machine's memory that the app takes by default.
MEMORY_SHARE = 0.75
# Reserved: the app and the worker, half a gibibyte each, two pictures that are being decoded, and request bodies.
RESERVED_BYTES, MIN_SHARED_BYTES = 8 * 2**28, 2**28


class Cache(Protocol):
    """A cache that gives memory back when others need it."""

    @property
    def nbytes(self) -> int:
        """Bytes that it takes now."""
        ...

    def make_room(self, nbytes: int) -> None:
        """Free this many bytes, the least used first, or as many as possible."""
        ...


class MemoryBudget:
    """Shares of a number of bytes, in a :class:`~vitviz.ui.server.fair_lock.FairOrder`. Safe between threads.

    Args:
        max_bytes: of all shares and caches together.
        caches: make room where a share does not fit, in this order.
        patience: seconds for which the next in order waits for others' shares before the caches make room.
    """

    def __init__(self, max_bytes: int, caches: Sequence[Cache] = (), patience: float = 2.0) -> None:
        self.max_bytes, self.caches, self.patience = max_bytes, tuple(caches), patience
        # The largest sum so far.
        self.peak_bytes = 0
        self._shares: list[int] = []
        self._waiting = FairOrder()
        self._changed = threading.Condition()

    @property
    def nbytes(self) -> int:
        """Bytes of all shares and caches now."""
        return sum(list(self._shares)) + self._cached_bytes

    @property
    def _cached_bytes(self) -> int:
        return sum(cache.nbytes for cache in self.caches)

    @contextmanager
    def share(self, nbytes: int, purpose: str, waiting: Callable[[], None] | None = None) -> Iterator[None]:
        """Hold a share, at once or when others have given enough back.

        Args:
            nbytes: its size.
            purpose: for the message, such as ``"this map"``.
            waiting: called from time to time while it waits; an exception that it raises gives up the place.

        Raises:
            LimitError: the budget is never so large.
        """
        visitor = current_visitor()
        with self._changed:
            ticket = self._waiting.join(visitor)
        try:
            self._wait(nbytes, ticket, purpose, waiting)
        finally:
            with self._changed:
                self._waiting.leave(ticket)
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._shares.remove(nbytes)
                self._changed.notify_all()

    def _wait(self, nbytes: int, ticket: Ticket, purpose: str, waiting: Callable[[], None] | None) -> None:
        if nbytes > self.max_bytes:
            raise LimitError(
                f"{purpose} needs {nbytes:,} bytes of memory; this server gives at most {self.max_bytes:,}"
            )
        first_since = None
        while True:
            with self._changed:
                if not self._waiting.before(ticket):
                    first_since = time.monotonic() if first_since is None else first_since
                if first_since is not None and self._fits(nbytes, time.monotonic() >= first_since + self.patience):
                    self._shares.append(nbytes)
                    self.peak_bytes = max(self.peak_bytes, self.nbytes)
                    return
                if not self._waiting.before(ticket) and not self._shares:
                    # Nobody will give anything back, and the caches cannot, such as the default model.
                    raise LimitError(
                        f"{purpose} needs {nbytes:,} bytes of memory; of its {self.max_bytes:,} this server has "
                        f"{max(0, self.max_bytes - self.nbytes):,} left"
                    )
                self._changed.wait(min(POLL_SECONDS, self.patience) if first_since is not None else POLL_SECONDS)
            if waiting is not None:
                waiting()

    def _fits(self, nbytes: int, has_waited: bool) -> bool:
        """Whether a share fits, after the caches have made room."""
        for cache in self.caches:
            # Until its patience ends, a share counts on those that others are about to give back.
            used = self.nbytes if has_waited else self._cached_bytes
            missing = used + nbytes - self.max_bytes
            if missing <= 0:
                break
            cache.make_room(missing)
        return self.nbytes + nbytes <= self.max_bytes


def shared_bytes(server_settings: ServerSettings, model_bytes: int) -> int:
    """The memory of the app that can be shared out.

    Args:
        server_settings: have the memory of the app; a share of the machine's by default.
        model_bytes: of the default model.

    Raises:
        ConfigError: too little is left.
    """
    total = server_settings.memory_bytes or int(MEMORY_SHARE * memory())
    left = total - RESERVED_BYTES - model_bytes
    if left < MIN_SHARED_BYTES:
        minimum = RESERVED_BYTES + model_bytes + MIN_SHARED_BYTES
        raise ConfigError(f"{PREFIX}MEMORY_BYTES = {total:,}: expected at least {minimum:,} with this model")
    return left
