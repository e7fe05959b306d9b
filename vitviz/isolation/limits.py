"""What a job may take."""

from __future__ import annotations

import os
import resource
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Limits:
    """What one job may take before it is ended.

    Args:
        memory_bytes: address space beyond that of an idle process. macOS enforces no such limit.
        cpu_seconds: processor time.
        wall_seconds: time on the clock, which counts where the machine is busy or the job waits.
        answer_bytes: of the array or the tensors that it hands over.
        niceness: how far the job gives way to other processes, 0 to 19.
        private_bytes: memory of its own beyond that of an idle process, files that it maps not counted; None for as
            much as its addresses allow.
        answer_seconds: processor time for each answer of a job that stays; None for as much as it has in all.
    """

    memory_bytes: int
    cpu_seconds: int
    wall_seconds: float
    answer_bytes: int
    niceness: int = 0
    private_bytes: int | None = None
    answer_seconds: float | None = None

    def begin_answer(self) -> None:
        """Count the time of an answer from now on. The signal ends the process, whatever it computes."""
        if self.answer_seconds is not None:
            signal.setitimer(signal.ITIMER_PROF, self.answer_seconds)

    def apply(self) -> None:
        """Bind this process, and whatever it starts, for the rest of its life."""
        addresses, private = _idle_bytes()
        if addresses:
            _lower(resource.RLIMIT_AS, addresses + self.memory_bytes)
        if addresses and self.private_bytes is not None:
            _lower(resource.RLIMIT_DATA, private + self.private_bytes)
        # The first signal ends the process; the hard limit is for one that caught it.
        _lower(resource.RLIMIT_CPU, self.cpu_seconds, self.cpu_seconds + 2)
        _lower(resource.RLIMIT_FSIZE, self.answer_bytes)
        _lower(resource.RLIMIT_CORE, 0)
        os.nice(self.niceness)


def _lower(kind: int, soft: int, hard: int | None = None) -> None:
    _, most = resource.getrlimit(kind)
    limit = soft if hard is None else hard
    ceiling = limit if most == resource.RLIM_INFINITY else min(limit, most)
    # macOS refuses some limits below what is in use.
    with suppress(ValueError, OSError):
        resource.setrlimit(kind, (min(soft, ceiling), ceiling))


def _idle_bytes() -> tuple[int, int]:
    """Bytes of address space of this process, and of those that are private and written; 0 where nobody says."""
    if not sys.platform.startswith("linux"):
        return 0, 0
    pages = [int(count) for count in Path("/proc/self/statm").read_text().split()]
    return pages[0] * resource.getpagesize(), pages[5] * resource.getpagesize()
