"""Free memory is that of the machine, or of a control group of the process if that has less."""

from __future__ import annotations

from pathlib import Path

import pytest

from vitviz.system.machine import free_memory, memory

MEMINFO = "MemTotal:       16000000 kB\nMemFree:         1000000 kB\nMemAvailable:    8000000 kB\n"
FREE = 8_000_000 * 1024
CASES: dict[str, tuple[str, dict[str, str], int]] = {
    "no limit": ("0::/", {"memory.max": "max", "memory.current": "5000"}, FREE),
    "version 2": ("0::/", {"memory.max": "4000000", "memory.current": "1000000"}, 3_000_000),
    "a group around it": (
        "0::/a/b",
        {"a/b/memory.max": "max", "a/b/memory.current": "1", "a/memory.max": "5000", "a/memory.current": "1000"},
        4000,
    ),
    "copies of files give way": (
        "0::/",
        {"memory.max": "4000", "memory.current": "3500", "memory.stat": "anon 1\ninactive_file 2000\nother 3"},
        2500,
    ),
    "more than its limit": ("0::/", {"memory.max": "4000", "memory.current": "5000"}, 0),
    "version 1": (
        "5:memory:/docker/1f\n4:cpu:/",
        {"memory/docker/1f/memory.limit_in_bytes": "9000", "memory/docker/1f/memory.usage_in_bytes": "2000"},
        7000,
    ),
}


def write(root: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{content}\n")


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_free_memory_is_the_smaller_of_the_machines_and_its_groups(
    case: tuple[str, dict[str, str], int], tmp_path: Path
) -> None:
    cgroup, files, expected = case
    write(tmp_path, {"proc/meminfo": MEMINFO, "proc/self/cgroup": cgroup})
    write(tmp_path, {f"sys/fs/cgroup/{name}": content for name, content in files.items()})
    assert free_memory(tmp_path) == expected


def test_free_memory_is_half_of_all_if_the_system_does_not_report_it(tmp_path: Path) -> None:
    assert free_memory(tmp_path) == memory(tmp_path) // 2 > 0
