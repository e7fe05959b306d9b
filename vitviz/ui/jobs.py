"""Long computations, which the visitor who asked for one can stop."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from uuid import uuid4


class JobCancelled(Exception):
    """The visitor asked to stop, or has left."""

    def __str__(self) -> str:
        return "Stopped"


class JobReplaced(JobCancelled):
    """The visitor asked for another job of the same name."""


@dataclass(eq=False)
class _Job:
    ticket: str = field(default_factory=lambda: uuid4().hex)
    # Why it is to end.
    ended: type[JobCancelled] | None = None

    def check(self) -> None:
        if self.ended is not None:
            raise self.ended


class Jobs:
    """What was asked for and is not over yet, one of a name for every visitor. Safe between threads."""

    def __init__(self) -> None:
        self._asked: dict[tuple[str, str], _Job] = {}
        self._lock = threading.Lock()

    def ask(self, visitor: str, name: str) -> str:
        """Announce a job, which supersedes the visitor's one before of this name; returns its ticket."""
        job = _Job()
        with self._lock:
            before, self._asked[visitor, name] = self._asked.get((visitor, name)), job
        if before is not None:
            before.ended = JobReplaced
        return job.ticket

    def asked(self, visitor: str, name: str) -> str | None:
        """The ticket of the visitor's job of this name that runs or is to run; None where there is none."""
        with self._lock:
            job = self._asked.get((visitor, name))
        return None if job is None else job.ticket

    @contextmanager
    def running(self, visitor: str, name: str, ticket: str | None = None) -> Iterator[Callable[[], None]]:
        """While it runs, call what comes now and then: it raises :class:`JobCancelled` once that is wanted,
        :class:`JobReplaced` where that is since another was asked for.

        Args:
            visitor: who asked for it.
            name: of the job, which supersedes the visitor's one before of the same name.
            ticket: from :meth:`ask`, where it was announced.

        Raises:
            JobCancelled: what was announced was stopped before it started.
            JobReplaced: another was asked for.
        """
        ticket = self.ask(visitor, name) if ticket is None else ticket
        with self._lock:
            job = self._asked.get((visitor, name))
        if job is None:
            raise JobCancelled
        if job.ticket != ticket:
            raise JobReplaced
        try:
            yield job.check
        finally:
            with self._lock:
                if self._asked.get((visitor, name)) is job:
                    del self._asked[visitor, name]

    def stop(self, visitor: str, name: str, ticket: str | None = None) -> bool:
        """Stop a visitor's job of this name, or only the one with this ticket; tells whether there was one."""
        with self._lock:
            job = self._asked.get((visitor, name))
            if job is not None and ticket in (None, job.ticket):
                del self._asked[visitor, name]
            else:
                job = None
        if job is not None:
            job.ended = JobCancelled
        return job is not None

    def leave(self, visitor: str) -> None:
        """Stop all jobs of a visitor who has gone."""
        with self._lock:
            gone = [self._asked.pop(key) for key in list(self._asked) if key[0] == visitor]
        for job in gone:
            job.ended = JobCancelled
