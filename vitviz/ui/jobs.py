"""Long computations, which the visitor who asked for one can stop."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from uuid import uuid4


class Stopped(Exception):
    """The visitor asked to stop, or asked for something else."""

    def __str__(self) -> str:
        return "Stopped"


@dataclass(frozen=True, eq=False)
class _Job:
    ticket: str = field(default_factory=lambda: uuid4().hex)
    stopped: threading.Event = field(default_factory=threading.Event)


class Jobs:
    """What was asked for and is not over yet, one of a name for every visitor. Safe between threads."""

    def __init__(self) -> None:
        self._asked: dict[tuple[str, str], _Job] = {}
        self._lock = threading.Lock()

    def ask(self, visitor: str, name: str) -> str:
        """Announce a job; returns the ticket with which it runs. The visitor's job before of this name is stopped."""
        job = _Job()
        with self._lock:
            before, self._asked[visitor, name] = self._asked.get((visitor, name)), job
        if before is not None:
            before.stopped.set()
        return job.ticket

    def asked(self, visitor: str, name: str) -> str | None:
        """The ticket of the visitor's job of this name that runs or is to run; None where there is none."""
        with self._lock:
            job = self._asked.get((visitor, name))
        return None if job is None else job.ticket

    @contextmanager
    def running(self, visitor: str, name: str, ticket: str | None = None) -> Iterator[Callable[[], None]]:
        """While it runs, call what comes now and then: it raises :class:`Stopped` once that is wanted.

        Args:
            visitor: who asked for it.
            name: of the job; the visitor's one before of the same name is stopped.
            ticket: from :meth:`ask`, where it was announced.

        Raises:
            Stopped: what was announced was stopped before it started.
        """
        ticket = self.ask(visitor, name) if ticket is None else ticket
        with self._lock:
            job = self._asked.get((visitor, name))
        if job is None or job.ticket != ticket:
            raise Stopped

        def check() -> None:
            if job.stopped.is_set():
                raise Stopped

        try:
            yield check
        finally:
            with self._lock:
                if self._asked.get((visitor, name)) is job:
                    del self._asked[visitor, name]

    def stop(self, visitor: str, name: str) -> bool:
        """Stop a visitor's job of this name; tells whether there was one."""
        with self._lock:
            job = self._asked.pop((visitor, name), None)
        if job is not None:
            job.stopped.set()
        return job is not None

    def leave(self, visitor: str) -> None:
        """Stop all jobs of a visitor who has gone."""
        with self._lock:
            gone = [self._asked.pop(key) for key in list(self._asked) if key[0] == visitor]
        for job in gone:
            job.stopped.set()
