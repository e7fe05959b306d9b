"""What is kept for visitors, up to a bound: beyond it, the visitor who holds the most loses first."""

from __future__ import annotations

import secrets
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

Value = TypeVar("Value", bound=Hashable)


@dataclass
class Entry(Generic[Value]):
    """What is kept under a key.

    Args:
        value: what is kept.
        visitor: whose it is.
        size: its share of the bound.
        used: when it was used last, in seconds of :func:`time.monotonic`.
    """

    value: Value
    visitor: str
    size: int
    used: float


class FairStore(Generic[Value]):
    """Values by key. Beyond the bound, those of the visitor who holds the most go, the least recently used first.

    So whoever sends more than fits takes it from nobody else. Safe between threads.

    Args:
        max_size: bound on the sum of the sizes.
    """

    def __init__(self, max_size: int) -> None:
        self.max_size = max_size
        # By their last use, the oldest first.
        self._entries: OrderedDict[str, Entry[Value]] = OrderedDict()
        self._held: Counter[str] = Counter()
        # A key of each value of a visitor.
        self._keys: dict[tuple[str, Value], str] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: str) -> bool:
        return key in self._entries

    @property
    def size(self) -> int:
        """The sum of the sizes."""
        return self._held.total()

    def put(self, key: str, value: Value, visitor: str, size: int = 1) -> list[Value]:
        """Keep a value under a new key; returns the values that went for it, which may be this one."""
        with self._lock:
            self._entries[key] = Entry(value, visitor, 0, time.monotonic())
            self._keys[visitor, value] = key
            return self._grow(key, size)

    def key(self, value: Value, visitor: str) -> str:
        """The key of a value of this visitor, which nobody can guess; that of an equal value if it is kept."""
        with self._lock:
            known = self._keys.get((visitor, value))
        if known is not None and self.get(known) is not None:
            return known
        key = secrets.token_urlsafe(16)
        self.put(key, value, visitor)
        return key

    def grow(self, key: str, size: int) -> list[Value]:
        """Add to the size of a value; returns the values that went for it, which may be this one.

        Raises:
            KeyError: it is no longer kept.
        """
        with self._lock:
            return self._grow(key, size)

    def get(self, key: str) -> Value | None:
        """The value of a key, whose use counts; None if it is not kept."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            entry.used = time.monotonic()
            self._entries.move_to_end(key)
            return entry.value

    def drop(self, key: str) -> None:
        """Keep a value no longer, if it is kept."""
        with self._lock:
            if key in self._entries:
                self._pop(key)

    def drop_unused(self, seconds: float) -> list[Value]:
        """Drop and return the values that nobody has used for so long."""
        with self._lock:
            limit = time.monotonic() - seconds
            return [self._pop(key) for key in [key for key, entry in self._entries.items() if entry.used <= limit]]

    def _grow(self, key: str, size: int) -> list[Value]:
        entry = self._entries[key]
        entry.size += size
        entry.used = time.monotonic()
        self._entries.move_to_end(key)
        self._held[entry.visitor] += size
        dropped = []
        while self.size > self.max_size:
            largest = max(self._held, key=self._held.__getitem__)
            dropped.append(self._pop(next(key for key, entry in self._entries.items() if entry.visitor == largest)))
        return dropped

    def _pop(self, key: str) -> Value:
        entry = self._entries.pop(key)
        self._held[entry.visitor] -= entry.size
        if not self._held[entry.visitor]:
            del self._held[entry.visitor]
        if self._keys.get((entry.visitor, entry.value)) == key:
            del self._keys[entry.visitor, entry.value]
        return entry.value
