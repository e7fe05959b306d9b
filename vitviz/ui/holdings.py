"""What is kept in memory for visitors, within a bound."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Holdings(Generic[Value]):
    """Values by key. At the bound, the largest holder's least recently used value goes first. Safe between threads.

    Args:
        limit: bound on the sum of the sizes; the newest value stays even if it is larger.
        size: of a value; each counts as 1 by default.
        on_drop: called with each value that goes.
    """

    def __init__(
        self, limit: int, size: Callable[[Value], int] = lambda _: 1, on_drop: Callable[[Value], None] = lambda _: None
    ) -> None:
        self.limit, self._size, self._on_drop = limit, size, on_drop
        # Value, size and holder.
        self._entries: OrderedDict[Hashable, tuple[Value, int, str]] = OrderedDict()
        self._held: Counter[str] = Counter()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def total(self) -> int:
        """The sum of the sizes."""
        return self._held.total()

    def put(self, key: Hashable, value: Value, holder: str = "") -> None:
        """Keep a value, in the place of an earlier one of the key; values without a holder have one together."""
        dropped = []
        with self._lock:
            if key in self._entries:
                self._remove(key)
            self._entries[key] = value, self._size(value), holder
            self._held[holder] += self._entries[key][1]
            while self.total > self.limit and len(self._entries) > 1:
                dropped.append(self._remove(self._first_to_go(key)))
        for each in dropped:
            self._on_drop(each)

    def get(self, key: Hashable) -> Value | None:
        """The value of a key, which counts as used; None if there is none."""
        with self._lock:
            if key not in self._entries:
                return None
            self._entries.move_to_end(key)
            return self._entries[key][0]

    def discard(self, is_superfluous: Callable[[Value], bool]) -> None:
        """Let all values go of which this is true."""
        with self._lock:
            for key in [key for key, entry in self._entries.items() if is_superfluous(entry[0])]:
                self._remove(key)

    def _remove(self, key: Hashable) -> Value:
        value, size, holder = self._entries.pop(key)
        self._held[holder] -= size
        self._held += Counter()
        return value

    def _first_to_go(self, newest: Hashable) -> Hashable:
        others = [(key, holder) for key, (_, _, holder) in self._entries.items() if key != newest]
        # Of holders of as much, the one of the least recently used value.
        largest = max((holder for _, holder in others), key=lambda holder: self._held[holder])
        return next(key for key, holder in others if holder == largest)
