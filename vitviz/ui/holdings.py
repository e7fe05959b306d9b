"""What is kept for visitors. The table says what counts how much; over its bound, whoever keeps most loses something.

It is what can be made again, then the oldest. Whoever keeps at most an equal share loses nothing for what others send.
"""

from __future__ import annotations

import secrets
import threading
import time
from base64 import urlsafe_b64encode
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from typing import Any, Generic, NamedTuple, TypeVar

from vitviz.system.strangers import FILE_BYTES, ROW_BYTES

Value = TypeVar("Value")


class Store(NamedTuple):
    """A row of the table of what is kept.

    Args:
        bound: which it counts against.
        counts: what each value counts.
        rank: a holder's values of the lowest go first.
        least: of each value.
    """

    bound: str
    counts: str
    rank: int
    least: int = 0


MEMORY, DISK, MODELS, ANALYSIS = "memory", "disk", "memory for models", "their analysis"
# What is computed again by itself, what the page asks for again, and what is lost.
BY_ITSELF, ON_REQUEST, NEVER = range(3)
STORES = {
    "gradients and matrices of analyses": Store(MEMORY, "their bytes", BY_ITSELF),
    "previews of links": Store(MEMORY, "their bytes and 4 KiB", BY_ITSELF, ROW_BYTES),
    "lengths of clips": Store(MEMORY, "4 KiB", BY_ITSELF, ROW_BYTES),
    "names of analyses": Store(MEMORY, "4 KiB", BY_ITSELF, ROW_BYTES),
    "analyses": Store(MEMORY, "queries, keys, the picture and the model's input", ON_REQUEST),
    "names of pictures": Store(MEMORY, "4 KiB", NEVER, ROW_BYTES),
    "files": Store(DISK, "their bytes, also while they arrive, and 256 KiB", NEVER, FILE_BYTES),
    "models": Store(MODELS, "the weights of those that the owner opens in the page", ON_REQUEST),
    "names of models": Store(MODELS, "the settings with which they were opened and 4 KiB", NEVER, ROW_BYTES),
    "maps": Store(ANALYSIS, "one of 16", BY_ITSELF, 1),
    "likeness targets": Store(ANALYSIS, "one of 8", BY_ITSELF, 1),
}


@dataclass(eq=False)
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
    size: int = 0
    used: float = 0.0


Place = tuple["Holdings[Any]", Hashable]
"""Where a value is kept."""


class Bound:
    """The bound of several holdings together. Safe between threads.

    Args:
        limit: of the sum of their sizes.

    Attributes:
        held: the sizes of each holder's values together.
    """

    def __init__(self, limit: int) -> None:
        self.limit, self.lock, self.held = limit, threading.RLock(), Counter[str]()
        # Of each holder and rank, the least recently used first.
        self.order: dict[str, tuple[OrderedDict[Place, Entry[Any]], ...]] = {}

    def first(self, but: Place | None = None) -> Place | None:
        """What goes first: of whoever keeps most, what was used least lately of the lowest rank; of the app last."""
        oldest = [
            ((not holder, -self.held[holder], entry.used), place)
            for holder, orders in self.order.items()
            for place, entry in islice((item for order in orders for item in order.items() if item[0] != but), 1)
        ]
        return min(oldest, key=lambda each: each[0])[1] if oldest else None


class Holdings(Generic[Value]):
    """Values by key, one row of :data:`STORES`. Safe between threads.

    Args:
        bound: theirs, which other holdings may share.
        store: the name of the row.
        size: of a new value; by default the least of the row.
        on_drop: called with each value that goes.
        keeps_newest: whether the value that was put or grew last stays even if it is larger than the bound.
    """

    def __init__(
        self,
        bound: Bound,
        store: str,
        size: Callable[[Value], int] = lambda _: 0,
        on_drop: Callable[[Value], object] = lambda _: None,
        *,
        keeps_newest: bool = True,
    ) -> None:
        self.bound, self.store = bound, STORES[store]
        self._size, self._on_drop, self._keeps_newest = size, on_drop, keeps_newest
        self._entries: dict[Hashable, Entry[Value]] = {}
        self._secret = secrets.token_bytes(32)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._entries

    def put(self, key: Hashable, value: Value, holder: str = "") -> None:
        """Keep a value, in the place of an earlier one of the key; one without a holder is the app's own."""
        with self.bound.lock:
            self._pop([key])
            self._entries[key] = Entry(value, holder)
            orders = self.bound.order.setdefault(holder, (OrderedDict(), OrderedDict(), OrderedDict()))
            orders[self.store.rank][self, key] = self._entries[key]
            dropped = self._grow(key, self.store.least + self._size(value))
        _let_go(dropped)

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
        with self.bound.lock:
            dropped = self._grow(key, size)
        _let_go(dropped)

    def get(self, key: Hashable) -> Value | None:
        """The value of a key, which counts as used; None if there is none."""
        with self.bound.lock:
            return self._use(key).value if key in self._entries else None

    def drop(self, key: Hashable) -> None:
        """Keep a value no longer, if it is kept."""
        with self.bound.lock:
            self._pop([key])

    def drop_unused(self, seconds: float) -> None:
        """Let all values go that nobody has used for so long."""
        with self.bound.lock:
            limit = time.monotonic() - seconds
            dropped = [*self._pop([key for key, entry in self._entries.items() if entry.used <= limit])]
        _let_go(dropped)

    def discard(self, is_superfluous: Callable[[Value], bool]) -> None:
        """Keep all values no longer of which this is true."""
        with self.bound.lock:
            self._pop([key for key, entry in self._entries.items() if is_superfluous(entry.value)])

    def _use(self, key: Hashable) -> Entry[Value]:
        entry = self._entries[key]
        entry.used = time.monotonic()
        self.bound.order[entry.holder][self.store.rank].move_to_end((self, key))
        return entry

    def _grow(self, key: Hashable, size: int) -> list[Drop]:
        entry, dropped = self._use(key), list[Drop]()
        entry.size += size
        self.bound.held[entry.holder] += size
        while self.bound.held.total() > self.bound.limit:
            first = self.bound.first((self, key) if self._keeps_newest else None)
            if first is None:
                break
            dropped += first[0]._pop([first[1]])
        return dropped

    def _pop(self, keys: Iterable[Hashable]) -> list[Drop]:
        entries = [(key, self._entries.pop(key)) for key in keys if key in self._entries]
        for key, entry in entries:
            del self.bound.order[entry.holder][self.store.rank][self, key]
            self.bound.held[entry.holder] -= entry.size
            if not any(self.bound.order[entry.holder]):
                del self.bound.order[entry.holder], self.bound.held[entry.holder]
        return [(self._on_drop, entry.value) for _, entry in entries]


Drop = tuple[Callable[[Any], object], Any]
"""What to call with a value that went."""


def _let_go(dropped: Iterable[Drop]) -> None:
    # It may take long, or ask these holdings.
    for on_drop, value in dropped:
        on_drop(value)
