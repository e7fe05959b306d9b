"""Long computations, which the visitor who asked for one can stop."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Stopped(Exception):
    """The visitor asked to stop."""


class Jobs:
    """What runs at the moment, one of a name for every visitor. Safe between threads."""

    def __init__(self) -> None:
        self._running: dict[tuple[str, str], threading.Event] = {}
        self._lock = threading.Lock()

    @contextmanager
    def running(self, visitor: str, name: str) -> Iterator[Callable[[], None]]:
        """While it runs, call what comes now and then: it raises :class:`Stopped` once that is wanted.

        The visitor's job of the same name that still runs is stopped.
        """
        stopped = threading.Event()
        with self._lock:
            before, self._running[visitor, name] = self._running.get((visitor, name)), stopped
        if before is not None:
            before.set()

        def check() -> None:
            if stopped.is_set():
                raise Stopped

        try:
            yield check
        finally:
            with self._lock:
                if self._running.get((visitor, name)) is stopped:
                    del self._running[visitor, name]

    def stop(self, visitor: str, name: str) -> None:
        """Stop a visitor's job of this name, if there is one."""
        with self._lock:
            stopped = self._running.get((visitor, name))
        if stopped is not None:
            stopped.set()
