"""The text towers of models, open while there is memory for them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import count
from weakref import WeakKeyDictionary

from vitviz.errors.kinds import CheckpointError
from vitviz.isolation import IsolatedTower, Worker
from vitviz.models.targets import Target
from vitviz.ui.server.estimates import tower_bytes
from vitviz.ui.server.fair_lock import FairLock
from vitviz.weights import Model


@dataclass
class _OpenTower:
    tower: IsolatedTower
    nbytes: int
    last_use: int


class TextTowers:
    """A cache of open towers; each lives as long as its model, or until others need memory. Safe between threads.

    Args:
        worker: starts their processes, each limited to its estimated memory.
    """

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self._open: WeakKeyDictionary[Model, _OpenTower] = WeakKeyDictionary()
        self._uses = count()
        self._lock, self._opening = threading.Lock(), FairLock()

    def __len__(self) -> int:
        return len(self._open)

    @property
    def nbytes(self) -> int:
        """The estimated bytes of the open towers."""
        return sum(entry.nbytes for entry in list(self._open.values()))

    def make_room(self, nbytes: int) -> None:
        """Close the least recently used towers until this many bytes are free, or all are closed.

        A tower that is reading a text closes after it.
        """
        with self._lock:
            freed = 0
            for model, entry in sorted(self._open.items(), key=lambda item: item[1].last_use):
                if freed >= nbytes:
                    break
                del self._open[model]
                freed += entry.nbytes

    def target(
        self,
        model: Model,
        text: str,
        room: Callable[[int], AbstractContextManager[None]],
        waiting: Callable[[], None] | None = None,
    ) -> Target:
        """A text as the target of a map.

        Args:
            model: of the tower.
            text: to be read.
            room: holds this many bytes while the tower is opened.
            waiting: called from time to time while other towers are opened; an exception that it raises ends it.

        Raises:
            CheckpointError, ConfigError, LimitError: the tower cannot be opened, or does not read the text.
        """
        tower = self._tower(model) or self._opened(model, room, waiting)
        try:
            return tower.target(text)
        except CheckpointError:
            # Its process has ended, or takes too long.
            with self._lock:
                entry = self._open.get(model)
                if entry is not None and entry.tower is tower:
                    del self._open[model]
            tower.close()
            raise

    def _opened(
        self,
        model: Model,
        room: Callable[[int], AbstractContextManager[None]],
        waiting: Callable[[], None] | None,
    ) -> IsolatedTower:
        # One at a time, so that no tower is opened twice.
        with self._opening.turn(None if waiting is None else lambda before: waiting()):
            tower = self._tower(model)
            if tower is None:
                nbytes = tower_bytes(model)
                with room(nbytes):
                    tower = IsolatedTower(self.worker, model, nbytes)
                with self._lock:
                    self._open[model] = _OpenTower(tower, nbytes, next(self._uses))
            return tower

    def _tower(self, model: Model) -> IsolatedTower | None:
        with self._lock:
            entry = self._open.get(model)
            if entry is None:
                return None
            entry.last_use = next(self._uses)
            return entry.tower
