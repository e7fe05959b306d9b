"""Caches of analyses and models, each within a bound of bytes. Safe to use from several threads."""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable

from vitviz.analysis.analysis import Analysis
from vitviz.weights import Model


class AnalysisCache:
    """The most recently used analyses, by unguessable ids; the least recently used are evicted at the bound.

    Args:
        max_bytes: bound on the sum of :attr:`Analysis.nbytes`; the newest analysis stays even if it is larger.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._analyses: OrderedDict[str, Analysis] = OrderedDict()
        # Ids of analyses that other requests may find.
        self._shared: dict[Hashable, str] = {}
        self._bytes = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._analyses)

    @property
    def nbytes(self) -> int:
        """Bytes of all entries."""
        return self._bytes

    def make_room(self, nbytes: int) -> None:
        """Evict the least recently used until this many bytes are free, or all are evicted."""
        with self._lock:
            target_bytes = max(0, self._bytes - nbytes)
            while self._analyses and self._bytes > target_bytes:
                self._bytes -= self._analyses.popitem(last=False)[1].nbytes

    def put(self, analysis: Analysis, request: Hashable = None) -> str:
        """Add an analysis and return its id.

        Args:
            analysis: the analysis.
            request: what was analysed and how, if :meth:`find` may return the analysis for an equal request.
        """
        key = secrets.token_urlsafe(16)
        with self._lock:
            self._analyses[key] = analysis
            if request is not None:
                self._shared = {each: id for each, id in self._shared.items() if id in self._analyses} | {request: key}
            self._bytes += analysis.nbytes
            while self._bytes > self.max_bytes and len(self._analyses) > 1:
                self._bytes -= self._analyses.popitem(last=False)[1].nbytes
        return key

    def get(self, key: str) -> Analysis | None:
        """The analysis of an id; None if the id is unknown or its analysis was evicted."""
        with self._lock:
            if key in self._analyses:
                self._analyses.move_to_end(key)
            return self._analyses.get(key)

    def find(self, request: Hashable) -> tuple[str, Analysis] | None:
        """The id and the analysis of a request; None if there is none, or it was evicted."""
        with self._lock:
            key = self._shared.get(request)
            if key is None or key not in self._analyses:
                return None
            self._analyses.move_to_end(key)
            return key, self._analyses[key]

    def drop(self, model: Model) -> None:
        """Evict every analysis by a model, since each keeps the model in memory."""
        with self._lock:
            for key in [key for key, analysis in self._analyses.items() if analysis.model is model]:
                self._bytes -= self._analyses.pop(key).nbytes


class ModelCache:
    """The most recently used models; the least recently used are evicted at the bound, and opened again on demand.

    Args:
        max_bytes: bound on the sum of :attr:`Model.nbytes`; the newest model stays even if it is larger.
        on_evict: called with every model that is evicted.
    """

    def __init__(self, max_bytes: int, on_evict: Callable[[Model], None]) -> None:
        self.max_bytes = max_bytes
        self.on_evict = on_evict
        self._models: OrderedDict[Hashable, Model] = OrderedDict()
        self._opening: dict[Hashable, threading.Event] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._models)

    @property
    def nbytes(self) -> int:
        """Bytes of all entries."""
        with self._lock:
            return sum(model.nbytes for model in self._models.values())

    def make_room(self, nbytes: int) -> None:
        """Evict the least recently used until this many bytes are free, or all are evicted."""
        evictions: list[Model] = []
        with self._lock:
            while self._models and sum(model.nbytes for model in evictions) < nbytes:
                evictions.append(self._models.popitem(last=False)[1])
        for model in evictions:
            self.on_evict(model)

    def get(self, key: Hashable, open_model: Callable[[], Model]) -> Model:
        """The model of a key. One thread opens a missing model while others wait for it.

        If it cannot be opened, the thread that tried gets the error, and the next waiting thread tries again.
        """
        while True:
            with self._lock:
                if key in self._models:
                    self._models.move_to_end(key)
                    return self._models[key]
                opening = self._opening.get(key)
                if opening is None:
                    opening = self._opening[key] = threading.Event()
                    break
            opening.wait()
        evictions: list[Model] = []
        try:
            model = open_model()
            with self._lock:
                self._models[key] = model
                evictions = self._fit()
        finally:
            with self._lock:
                del self._opening[key]
            opening.set()
        for evicted_model in evictions:
            self.on_evict(evicted_model)
        return model

    def _fit(self) -> list[Model]:
        evicted = []
        while sum(model.nbytes for model in self._models.values()) > self.max_bytes and len(self._models) > 1:
            evicted.append(self._models.popitem(last=False)[1])
        return evicted
