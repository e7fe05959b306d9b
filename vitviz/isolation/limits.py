"""What a job may take."""

from __future__ import annotations

import os
import resource
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
    """

    memory_bytes: int
    cpu_seconds: int
    wall_seconds: float
    answer_bytes: int
    niceness: int = 0

    def apply(self) -> None:
        """Bind this process, and whatever it starts, for the rest of its life."""
        idle_bytes = _address_space()
        if idle_bytes:
            _lower(resource.RLIMIT_AS, idle_bytes + self.memory_bytes)
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


def _address_space() -> int:
    """Bytes of address space of this process; 0 where the system does not say."""
    if not sys.platform.startswith("linux"):
        return 0
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()
