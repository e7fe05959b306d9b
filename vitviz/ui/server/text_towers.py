"""The text towers of the models, open while there is room for them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import count
from weakref import WeakKeyDictionary

from vitviz.isolation import IsolatedTower, Worker
from vitviz.models.targets import Target
from vitviz.ui.server.estimates import tower_bytes
from vitviz.weights import Model


@dataclass
class _Open:
    tower: IsolatedTower
    nbytes: int
    used: int


class TextTowers:
    """Each lives as long as its model, or until others need the room. Safe between threads.

    Args:
        worker: that starts their processes.
        max_bytes: most that the weights of one may take.
    """

    def __init__(self, worker: Worker, max_bytes: int) -> None:
        self.worker, self.max_bytes = worker, max_bytes
        self._open: WeakKeyDictionary[Model, _Open] = WeakKeyDictionary()
        self._clock = count()
        self._lock, self._opening = threading.Lock(), threading.Lock()

    def __len__(self) -> int:
        return len(self._open)

    @property
    def nbytes(self) -> int:
        """Bytes that the open ones take at most."""
        return sum(each.nbytes for each in list(self._open.values()))

    def make_room(self, nbytes: int) -> None:
        """Close those used least lately until this many bytes are free, or all are closed.

        One that is reading a text ends after it.
        """
        with self._lock:
            freed = 0
            for model, each in sorted(self._open.items(), key=lambda item: item[1].used):
                if freed >= nbytes:
                    break
                del self._open[model]
                freed += each.nbytes

    def target(self, model: Model, text: str, room: Callable[[int], AbstractContextManager[None]]) -> Target:
        """A text as what a map is about.

        Args:
            model: whose tower reads it.
            text: to be read.
            room: holds so many bytes while the tower is opened.

        Raises:
            CheckpointError, ConfigError, LimitError: the tower cannot be opened.
        """
        # No tower is opened twice.
        with self._opening:
            tower = self._tower(model)
            if tower is None:
                needed = tower_bytes(model)
                with room(needed):
                    tower = IsolatedTower(self.worker, model, self.max_bytes)
                with self._lock:
                    self._open[model] = _Open(tower, needed, next(self._clock))
        return tower.target(text)

    def _tower(self, model: Model) -> IsolatedTower | None:
        with self._lock:
            found = self._open.get(model)
            if found is None:
                return None
            found.used = next(self._clock)
            return found.tower
