"""The memory that an app holds, with all processes that it has started."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path


def resident_bytes(process: int) -> int:
    """Memory in bytes of a process and its descendants; pages that they share count once. Linux only."""
    return sum(_proportional_bytes(each) for each in tree(process))


def tree(process: int) -> list[int]:
    """A process and its descendants, the process first."""
    children = defaultdict(list)
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            parent = _parent(folder)
            if parent is not None:
                children[parent].append(int(folder.name))
    processes = [process]
    for each in processes:
        processes += children[each]
    return processes


def _parent(folder: Path) -> int | None:
    try:
        return int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    # The process has ended.
    except (OSError, IndexError):
        return None


def _proportional_bytes(process: int) -> int:
    try:
        text = Path(f"/proc/{process}/smaps_rollup").read_text()
    except OSError:
        return 0
    return 1024 * sum(map(int, re.findall(r"^Pss:\s+(\d+) kB$", text, re.MULTILINE)))
