"""Limits of a job's resources."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

# Not on Windows.
with suppress(ImportError):
    import resource


@dataclass(frozen=True)
class Limits:
    """Limits of one job; a job that exceeds one is killed.

    Args:
        memory_bytes: address space beyond that of an idle process. macOS enforces no such limit.
        cpu_seconds: processor time.
        wall_seconds: elapsed time, which also passes while the machine is busy or the job waits.
        answer_bytes: of the array or the tensors that it returns.
        niceness: of its process, 0 to 19.
        private_bytes: private memory beyond that of an idle process, without mapped files; None for no limit but
            ``memory_bytes``.
        answer_seconds: processor time for each answer of a job with many; None for no limit but ``cpu_seconds``.
    """

    memory_bytes: int
    cpu_seconds: int
    wall_seconds: float
    answer_bytes: int
    niceness: int = 0
    private_bytes: int | None = None
    answer_seconds: float | None = None

    def begin_answer(self) -> None:
        """Start the timer of an answer. When it runs out, its signal kills the process."""
        if self.answer_seconds is not None:
            signal.setitimer(signal.ITIMER_PROF, self.answer_seconds)

    def apply(self) -> None:
        """Apply the limits to this process and its children for the rest of its life."""
        addresses, private = _idle_bytes()
        if addresses:
            _lower(resource.RLIMIT_AS, addresses + self.memory_bytes)
        if addresses and self.private_bytes is not None:
            _lower(resource.RLIMIT_DATA, private + self.private_bytes)
        # The soft limit's signal ends the process; the hard limit kills one that catches it.
        _lower(resource.RLIMIT_CPU, self.cpu_seconds, self.cpu_seconds + 2)
        _lower(resource.RLIMIT_FSIZE, self.answer_bytes)
        _lower(resource.RLIMIT_CORE, 0)
        os.nice(self.niceness)


def _lower(kind: int, soft: int, hard: int | None = None) -> None:
    _, present = resource.getrlimit(kind)
    limit = soft if hard is None else hard
    ceiling = limit if present == resource.RLIM_INFINITY else min(limit, present)
    # macOS refuses some limits below the present use.
    with suppress(ValueError, OSError):
        resource.setrlimit(kind, (min(soft, ceiling), ceiling))


def _idle_bytes() -> tuple[int, int]:
    """Bytes of address space and of private memory of this process; 0 if the system does not tell."""
    if not sys.platform.startswith("linux"):
        return 0, 0
    pages = [int(count) for count in Path("/proc/self/statm").read_text().split()]
    return pages[0] * resource.getpagesize(), pages[5] * resource.getpagesize()
