"""What is kept for visitors, within a bound."""

from __future__ import annotations

import secrets
import threading
import time
from base64 import urlsafe_b64encode
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Generic, TypeVar

Value = TypeVar("Value")


@dataclass
class Entry(Generic[Value]):
    """What is kept under a key.

    Args:
        value: what is kept.
        holder: whose it is.
        size: its share of the bound.
        used: when it was used last, in seconds of :func:`time.monotonic`.
    """

    value: Value
    holder: str
    size: int
    used: float


class Holdings(Generic[Value]):
    """Values by key. At the bound, the largest holder's least recently used value goes first. Safe between threads.

    So whoever sends more than fits takes it from nobody else.

    Args:
        limit: bound on the sum of the sizes.
        size: of a new value; each counts as 1 by default.
        on_drop: called with each value that goes.
        keeps_newest: whether the value that was put or grew last stays even if it is larger than the bound.
    """

    def __init__(
        self,
        limit: int,
        size: Callable[[Value], int] = lambda _: 1,
        on_drop: Callable[[Value], object] = lambda _: None,
        *,
        keeps_newest: bool = True,
    ) -> None:
        self.limit, self._size, self._on_drop, self._keeps_newest = limit, size, on_drop, keeps_newest
        # The least recently used first.
        self._entries: OrderedDict[Hashable, Entry[Value]] = OrderedDict()
        self._held: Counter[str] = Counter()
        self._lock, self._secret = threading.Lock(), secrets.token_bytes(32)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._entries

    @property
    def total(self) -> int:
        """The sum of the sizes."""
        return self._held.total()

    def put(self, key: Hashable, value: Value, holder: str = "") -> None:
        """Keep a value, in the place of an earlier one of the key; values without a holder have one together."""
        with self._lock:
            self._pop([key])
            self._entries[key] = Entry(value, holder, 0, 0.0)
            dropped = self._grow(key, self._size(value))
        self._let_go(dropped)

    def key(self, value: Value, holder: str) -> str:
        """The key of a value of this holder, which nobody can guess, and which equal values share."""
        digest = blake2b(repr((holder, value)).encode(), digest_size=16, key=self._secret).digest()
        key = urlsafe_b64encode(digest).decode().rstrip("=")
        self.put(key, value, holder)
        return key

    def grow(self, key: Hashable, size: int) -> None:
        """Add to the size of a value, which may go itself.

        Raises:
            KeyError: it is no longer kept.
        """
        with self._lock:
            dropped = self._grow(key, size)
        self._let_go(dropped)

    def get(self, key: Hashable) -> Value | None:
        """The value of a key, which counts as used; None if there is none."""
        with self._lock:
            return self._use(key).value if key in self._entries else None

    def drop(self, key: Hashable) -> None:
        """Keep a value no longer, if it is kept."""
        with self._lock:
            self._pop([key])

    def drop_unused(self, seconds: float) -> None:
        """Let all values go that nobody has used for so long."""
        with self._lock:
            limit = time.monotonic() - seconds
            dropped = self._pop([key for key, entry in self._entries.items() if entry.used <= limit])
        self._let_go(dropped)

    def discard(self, is_superfluous: Callable[[Value], bool]) -> None:
        """Keep all values no longer of which this is true."""
        with self._lock:
            self._pop([key for key, entry in self._entries.items() if is_superfluous(entry.value)])

    def _let_go(self, values: Iterable[Value]) -> None:
        # It may take long, or ask these holdings.
        for value in values:
            self._on_drop(value)

    def _use(self, key: Hashable) -> Entry[Value]:
        entry = self._entries[key]
        entry.used = time.monotonic()
        self._entries.move_to_end(key)
        return entry

    def _grow(self, key: Hashable, size: int) -> list[Value]:
        entry, dropped = self._use(key), list[Value]()
        entry.size += size
        self._held[entry.holder] += size
        while self.total > self.limit:
            others = [other for other in self._entries if other != key or not self._keeps_newest]
            if not others:
                break
            # Of holders of as much, the one of the least recently used value.
            dropped += self._pop([max(others, key=lambda other: self._held[self._entries[other].holder])])
        return dropped

    def _pop(self, keys: Iterable[Hashable]) -> list[Value]:
        entries = [self._entries.pop(key) for key in keys if key in self._entries]
        for entry in entries:
            self._held[entry.holder] -= entry.size
        self._held += Counter()
        return [entry.value for entry in entries]
