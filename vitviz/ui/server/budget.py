"""The memory of a running server: whatever needs much of it takes its share before it begins."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from vitviz.attention.machine import memory
from vitviz.errors.kinds import ConfigError, LimitError
from vitviz.ui.server.fair_lock import ASK_EVERY, FairOrder, Ticket, current_visitor
from vitviz.ui.server.settings import PREFIX, ServerSettings

# Of the memory of the machine, where nobody says how much the app may take.
MEMORY_PART = 0.75
# The app itself and the process that opens files, half a gibibyte each, two pictures that are being decoded, and the
# bodies of requests.
RESERVED_BYTES, LEAST_SHARED_BYTES = 8 * 2**28, 2**28


class Cache(Protocol):
    """What is kept in memory as long as nobody needs the room."""

    @property
    def nbytes(self) -> int:
        """Bytes that it takes now."""
        ...

    def make_room(self, nbytes: int) -> None:
        """Let go of so many bytes, the least used first, or of all that it can."""
        ...


@dataclass
class _Share:
    nbytes: int


class MemoryBudget:
    """Shares of a number of bytes, given out in a :class:`~vitviz.ui.server.fair_lock.FairOrder`. Safe between threads.

    Args:
        max_bytes: of all shares and of what is kept, together.
        caches: what gives way where a share does not fit, in this order.
        patience: seconds for which who is next waits for others' shares before what is kept gives way.
    """

    def __init__(self, max_bytes: int, caches: Sequence[Cache] = (), patience: float = 2.0) -> None:
        self.max_bytes, self.caches, self.patience = max_bytes, tuple(caches), patience
        self.most = 0
        self._shares: list[_Share] = []
        self._waiting = FairOrder()
        self._changed = threading.Condition()

    @property
    def nbytes(self) -> int:
        """Bytes that are taken now, by shares and by what is kept."""
        return sum(share.nbytes for share in list(self._shares)) + sum(each.nbytes for each in self.caches)

    @contextmanager
    def share(self, nbytes: int, what: str, asking: Callable[[], None] | None = None) -> Iterator[None]:
        """Have so many bytes: at once, or when others gave enough back.

        Args:
            nbytes: that are needed at most.
            what: needs them, as a message says it.
            asking: called now and then while it waits; an exception that it raises gives the place up.

        Raises:
            LimitError: there never are so many.
        """
        share, visitor = _Share(nbytes), current_visitor()
        with self._changed:
            ticket = self._waiting.join(visitor)
        try:
            self._wait(share, ticket, what, asking)
        finally:
            with self._changed:
                self._waiting.leave(ticket)
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._shares.remove(share)
                self._changed.notify_all()

    def _wait(self, share: _Share, ticket: Ticket, what: str, asking: Callable[[], None] | None) -> None:
        if share.nbytes > self.max_bytes:
            raise LimitError(
                f"{what} needs {share.nbytes:,} bytes of memory; this server gives at most {self.max_bytes:,}"
            )
        first_since = None
        while True:
            with self._changed:
                if not self._waiting.before(ticket):
                    first_since = time.monotonic() if first_since is None else first_since
                if first_since is not None and self._fits(share, time.monotonic() >= first_since + self.patience):
                    self._shares.append(share)
                    self.most = max(self.most, self.nbytes)
                    return
                if not self._waiting.before(ticket) and not self._shares:
                    # What is kept cannot go, such as the model with which the page opens, and nobody gives back.
                    raise LimitError(
                        f"{what} needs {share.nbytes:,} bytes of memory; of its {self.max_bytes:,} this server has "
                        f"{max(0, self.max_bytes - self.nbytes):,} left"
                    )
                self._changed.wait(min(ASK_EVERY, self.patience) if first_since is not None else ASK_EVERY)
            if asking is not None:
                asking()

    def _fits(self, share: _Share, has_waited: bool) -> bool:
        """Whether there is room, made where it can be."""
        for each in self.caches:
            # What others are about to give back need not leave what is kept.
            taken = self.nbytes if has_waited else sum(other.nbytes for other in self.caches)
            missing = taken + share.nbytes - self.max_bytes
            if missing <= 0:
                break
            each.make_room(missing)
        return self.nbytes + share.nbytes <= self.max_bytes


def shared_bytes(server_settings: ServerSettings, model_bytes: int) -> int:
    """Of the memory of the app, what is not taken in any case.

    Args:
        server_settings: which say how much the app may take, or leave it to the machine.
        model_bytes: of the model of the start.

    Raises:
        ConfigError: too little is left.
    """
    whole = server_settings.memory_bytes or int(MEMORY_PART * memory())
    left = whole - RESERVED_BYTES - model_bytes
    if left < LEAST_SHARED_BYTES:
        least = RESERVED_BYTES + model_bytes + LEAST_SHARED_BYTES
        raise ConfigError(f"{PREFIX}MEMORY_BYTES = {whole:,}: expected at least {least:,} with this model")
    return left
