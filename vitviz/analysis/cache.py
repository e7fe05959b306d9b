"""Analyses and models kept for a while, within a bound of bytes. Safe between threads."""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable

from vitviz.analysis.analysis import Analysis
from vitviz.weights import Model


class AnalysisCache:
    """The analyses used last, by unguessable ids; the oldest leave when the bound is reached.

    Args:
        max_bytes: most that is held, by each analysis's own count; at least the newest is always kept.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._held: OrderedDict[str, Analysis] = OrderedDict()
        # Ids of those that are nobody's own.
        self._shared: dict[Hashable, str] = {}
        self._bytes = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._held)

    @property
    def nbytes(self) -> int:
        """Bytes that are held."""
        return self._bytes

    def make_room(self, nbytes: int) -> None:
        """Evict the least recently used until this many bytes are free, or all are evicted."""
        with self._lock:
            left = max(0, self._bytes - nbytes)
            while self._held and self._bytes > left:
                self._bytes -= self._held.popitem(last=False)[1].nbytes

    def put(self, analysis: Analysis, of: Hashable = None) -> str:
        """Keep an analysis; returns the id that gives it back.

        Args:
            analysis: that is kept.
            of: what was analysed, and how, where :meth:`find` may give it to whoever asks for the same.
        """
        key = secrets.token_urlsafe(16)
        with self._lock:
            self._held[key] = analysis
            if of is not None:
                self._shared = {each: id for each, id in self._shared.items() if id in self._held} | {of: key}
            self._bytes += analysis.nbytes
            while self._bytes > self.max_bytes and len(self._held) > 1:
                self._bytes -= self._held.popitem(last=False)[1].nbytes
        return key

    def get(self, key: str) -> Analysis | None:
        """The analysis of an id; None if the id is unknown or its analysis was evicted."""
        with self._lock:
            if key in self._held:
                self._held.move_to_end(key)
            return self._held.get(key)

    def find(self, of: Hashable) -> tuple[str, Analysis] | None:
        """The id and the analysis that was kept of this; None if there is none, or it was evicted."""
        with self._lock:
            key = self._shared.get(of)
            if key is None or key not in self._held:
                return None
            self._held.move_to_end(key)
            return key, self._held[key]

    def drop(self, model: Model) -> None:
        """Evict every analysis by a model, since each keeps the model in memory."""
        with self._lock:
            for key in [key for key, analysis in self._held.items() if analysis.model is model]:
                self._bytes -= self._held.pop(key).nbytes


class ModelCache:
    """The models used last; the oldest leave when the bound is reached, and are opened again when asked for.

    Args:
        max_bytes: most that is held, by the models' own count; at least the newest is always kept.
        leaving: called with every model that leaves.
    """

    def __init__(self, max_bytes: int, leaving: Callable[[Model], None]) -> None:
        self.max_bytes = max_bytes
        self.leaving = leaving
        self._held: OrderedDict[Hashable, Model] = OrderedDict()
        self._opening: dict[Hashable, threading.Event] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._held)

    @property
    def nbytes(self) -> int:
        """Bytes that are held."""
        with self._lock:
            return sum(model.nbytes for model in self._held.values())

    def make_room(self, nbytes: int) -> None:
        """Evict the least recently used until this many bytes are free, or all are evicted."""
        evictions: list[Model] = []
        with self._lock:
            while self._held and sum(model.nbytes for model in evictions) < nbytes:
                evictions.append(self._held.popitem(last=False)[1])
        for model in evictions:
            self.leaving(model)

    def get(self, key: Hashable, open_model: Callable[[], Model]) -> Model:
        """The model of a key. One thread opens a missing model while others wait for it.

        Where it cannot be opened, the thread that tried gets the error, and the next one tries for itself.
        """
        while True:
            with self._lock:
                if key in self._held:
                    self._held.move_to_end(key)
                    return self._held[key]
                opening = self._opening.get(key)
                if opening is None:
                    opening = self._opening[key] = threading.Event()
                    break
            opening.wait()
        evictions: list[Model] = []
        try:
            model = open_model()
            with self._lock:
                self._held[key] = model
                evictions = self._fit()
        finally:
            with self._lock:
                del self._opening[key]
            opening.set()
        for evicted_model in evictions:
            self.leaving(evicted_model)
        return model

    def _fit(self) -> list[Model]:
        evictions = []
        while sum(model.nbytes for model in self._held.values()) > self.max_bytes and len(self._held) > 1:
            evictions.append(self._held.popitem(last=False)[1])
        return evictions
