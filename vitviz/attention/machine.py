"""How much memory this process may take, and how much of that is free."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

# Of a control group, in version 2 and 1.
LIMITS = ("memory.max", "memory.limit_in_bytes")
USED = ("memory.current", "memory.usage_in_bytes")


def memory(root: Path = Path("/")) -> int:
    """How many bytes of memory this process may take: those of the machine, or of the control groups that it is in.

    Args:
        root: of the file system in which the control groups are looked up.
    """
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = (_number(group, *LIMITS) for group in control_groups(root, "memory"))
    return min([machine, *(limit for limit in limits if limit is not None)])


def free_memory(root: Path = Path("/")) -> int:
    """How many bytes this process can take yet: those free on the machine, and in its control groups.

    Where the system does not tell, half of what :func:`memory` gives.

    Args:
        root: of the file system in which this is looked up.
    """
    try:
        found = re.search(r"^MemAvailable:\s+(\d+) kB$", (root / "proc" / "meminfo").read_text(), re.MULTILINE)
    # Not Linux.
    except OSError:
        found = None
    free = memory(root) // 2 if found is None else 1024 * int(found[1])
    for group in control_groups(root, "memory"):
        limit, used = _number(group, *LIMITS), _number(group, *USED)
        if limit is not None and used is not None:
            # Copies of files, which give way, count as used.
            free = min(free, max(0, limit - used + _file_cache(group)))
    return free


def control_groups(root: Path, controller: str) -> Iterator[Path]:
    """The folders of the control groups that the process is in, of one controller."""
    try:
        lines = (root / "proc" / "self" / "cgroup").read_text().splitlines()
    # Not Linux.
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        # Version 2 has no names of controllers here; of version 1, one is enough.
        if controllers and controller not in controllers.split(","):
            continue
        top = root / "sys" / "fs" / "cgroup" / controllers
        inner = PurePosixPath(path).relative_to("/")
        yield from (top / group for group in (inner, *inner.parents))


def _number(group: Path, *names: str) -> int | None:
    """The number in the first of these files of a control group that is there; None where it sets none."""
    for name in names:
        with suppress(OSError):
            text = (group / name).read_text().strip()
            return int(text) if text.isdigit() else None
    return None


def _file_cache(group: Path) -> int:
    with suppress(OSError):
        found = re.search(r"^inactive_file (\d+)$", (group / "memory.stat").read_text(), re.MULTILINE)
        return 0 if found is None else int(found[1])
    return 0
