"""Analyses kept for a while, within a bound of bytes, and handed out only to who made them."""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict

from vitviz.analysis import Analysis


class AnalysisCache:
    """The analyses used last, by unguessable ids; the oldest leave when the bound is reached. Safe between threads.

    Args:
        max_bytes: most that is held, by each analysis's own count; at least the newest is always kept.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._held: OrderedDict[str, Analysis] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._held)

    def put(self, analysis: Analysis) -> str:
        """Keep an analysis; returns the id that gives it back."""
        key = secrets.token_urlsafe(16)
        with self._lock:
            self._held[key] = analysis
            self._bytes += analysis.nbytes
            while self._bytes > self.max_bytes and len(self._held) > 1:
                self._bytes -= self._held.popitem(last=False)[1].nbytes
        return key

    def get(self, key: str) -> Analysis | None:
        """The analysis of an id; None if it was never given out, or has left."""
        with self._lock:
            if key in self._held:
                self._held.move_to_end(key)
            return self._held.get(key)
