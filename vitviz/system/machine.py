"""How much memory this process may use, and how much of it is free."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath

# Of a machine that does not say what it has.
UNKNOWN_BYTES = 8 * 2**30
# Files of a control group, in version 2 and version 1.
LIMIT_FILES = ("memory.max", "memory.limit_in_bytes")
USAGE_FILES = ("memory.current", "memory.usage_in_bytes")


def memory(root: Path = Path("/")) -> int:
    """How many bytes of memory this process may use: the machine's, or fewer if its control groups set a limit.

    Args:
        root: root of the file system with ``proc`` and ``sys``.
    """
    # Windows has no sysconf.
    known = hasattr(os, "sysconf")
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if known else UNKNOWN_BYTES
    limits = (_first_number(group, LIMIT_FILES) for group in control_groups(root, "memory"))
    return min([machine, *(limit for limit in limits if limit is not None)])


def free_memory(root: Path = Path("/")) -> int:
    """How many more bytes this process can use, given what the machine and its control groups have free.

    Half of :func:`memory` on a system that does not report free memory.

    Args:
        root: root of the file system with ``proc`` and ``sys``.
    """
    available = _number(root / "proc" / "meminfo", r"^MemAvailable:\s+(\d+) kB$")
    free = memory(root) // 2 if available is None else 1024 * available
    for group in control_groups(root, "memory"):
        limit, used = _first_number(group, LIMIT_FILES), _first_number(group, USAGE_FILES)
        if limit is not None and used is not None:
            # The group counts cached files as used, though the kernel drops them on demand.
            cached = _number(group / "memory.stat", r"^inactive_file (\d+)$") or 0
            free = min(free, max(0, limit - used + cached))
    return free


def has_room(nbytes: int) -> bool:
    """Whether this process may still use so many bytes, by the system's limit on its data, if there is one.

    What is used counts, and not what is reserved, such as stacks and holes between blocks, which later work fills.
    """
    # Not on Windows and macOS.
    with suppress(ImportError, FileNotFoundError):
        import resource

        limit, _ = resource.getrlimit(resource.RLIMIT_DATA)
        return limit == resource.RLIM_INFINITY or used_memory() + nbytes <= limit
    return True


def used_memory() -> int:
    """How many bytes this process uses, without those that it shares; 0 on a system that does not say it."""
    with suppress(FileNotFoundError):
        resident, shared = map(int, Path("/proc/self/statm").read_text().split()[1:3])
        return (resident - shared) * os.sysconf("SC_PAGE_SIZE")
    return 0


def control_groups(root: Path, controller: str) -> Iterator[Path]:
    """The folders of this process's control groups for one controller, innermost first."""
    try:
        lines = (root / "proc" / "self" / "cgroup").read_text().splitlines()
    # Not Linux.
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        # Version 2 lists no controllers; version 1 lists those of the group.
        if controllers and controller not in controllers.split(","):
            continue
        inner = PurePosixPath(path).relative_to("/")
        yield from (root / "sys" / "fs" / "cgroup" / controllers / group for group in (inner, *inner.parents))


def _first_number(group: Path, names: Sequence[str]) -> int | None:
    """The number in the first of these files that a control group has one in."""
    return next((found for name in names if (found := _number(group / name, r"\A(\d+)\n?\Z")) is not None), None)


def _number(path: Path, pattern: str) -> int | None:
    """The number that a pattern finds in a file; None if there is none, or no such file, as outside Linux."""
    with suppress(OSError):
        match = re.search(pattern, path.read_text(), re.MULTILINE)
        return None if match is None else int(match[1])
    return None
