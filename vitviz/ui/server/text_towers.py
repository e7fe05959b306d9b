"""The text towers of the models, open while there is room for them."""

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
class _Open:
    tower: IsolatedTower
    nbytes: int
    used: int


class TextTowers:
    """Each lives as long as its model, or until others need the room. Safe between threads.

    Args:
        worker: that starts their processes, each of which may take what was counted for it.
    """

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self._open: WeakKeyDictionary[Model, _Open] = WeakKeyDictionary()
        self._clock = count()
        self._lock, self._opening = threading.Lock(), FairLock()

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

    def target(
        self,
        model: Model,
        text: str,
        room: Callable[[int], AbstractContextManager[None]],
        asking: Callable[[], None] | None = None,
    ) -> Target:
        """A text as what a map is about.

        Args:
            model: whose tower reads it.
            text: to be read.
            room: holds so many bytes while the tower is opened.
            asking: called now and then while others' are opened; an exception that it raises ends it.

        Raises:
            CheckpointError, ConfigError, LimitError: the tower cannot be opened, or does not read the text.
        """
        tower = self._tower(model) or self._opened(model, room, asking)
        try:
            return tower.target(text)
        except CheckpointError:
            # Its process is gone, or takes too long.
            with self._lock:
                known = self._open.get(model)
                if known is not None and known.tower is tower:
                    del self._open[model]
            tower.close()
            raise

    def _opened(
        self,
        model: Model,
        room: Callable[[int], AbstractContextManager[None]],
        asking: Callable[[], None] | None,
    ) -> IsolatedTower:
        # No tower is opened twice, and one at a time.
        with self._opening.turn(None if asking is None else lambda before: asking()):
            tower = self._tower(model)
            if tower is None:
                needed = tower_bytes(model)
                with room(needed):
                    tower = IsolatedTower(self.worker, model, needed)
                with self._lock:
                    self._open[model] = _Open(tower, needed, next(self._clock))
            return tower

    def _tower(self, model: Model) -> IsolatedTower | None:
        with self._lock:
            found = self._open.get(model)
            if found is None:
                return None
            found.used = next(self._clock)
            return found.tower
