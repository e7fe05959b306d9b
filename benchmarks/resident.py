"""The memory that an app holds, with all processes that it has started."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path


def resident_bytes(process: int) -> int:
    """Memory in bytes of a process and its descendants; pages that they share count once. Linux only."""
    found = 0
    for each in tree(process):
        # A process may end meanwhile.
        with suppress(OSError):
            text = Path(f"/proc/{each}/smaps_rollup").read_text()
            found += 1024 * sum(map(int, re.findall(r"^Pss:\s+(\d+) kB$", text, re.MULTILINE)))
    return found


def tree(process: int) -> list[int]:
    """A process and its descendants, the process first."""
    processes = [process]
    for each in processes:
        with suppress(OSError):
            for thread in Path(f"/proc/{each}/task").iterdir():
                processes += map(int, (thread / "children").read_text().split())
    return processes
