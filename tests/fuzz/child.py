"""The process that runs cases. It prints a line of JSON before and after each, which shows hangs and crashes."""

from __future__ import annotations

import gc
import json
import re
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any

from tests.fuzz.targets import MEGABYTE, TARGETS, Case, Target, draw_case
from vitviz import VitvizError

# The processor time for all measurements of a case.
CASE_SECONDS = 60.0
# Shorter times are not compared with those of smaller inputs, as they would measure clocks and caches.
FLOOR_SECONDS = 0.25
# Input of eight times the size may take at most MAX_GROWTH times as long.
MAX_GROWTH = 8**1.5
MOST_ADDRESSES = 16 * 2**30


def peak() -> int:
    """The peak memory of this process in bytes, since :func:`forget_peak` if the system can reset it."""
    status = Path("/proc/self/status")
    if status.exists():
        return int(re.findall(r"VmHWM:\s+(\d+) kB", status.read_text())[0]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def forget_peak() -> None:
    if Path("/proc/self/clear_refs").exists():
        Path("/proc/self/clear_refs").write_text("5")


def measure(target: Target, name: str, content: Any) -> tuple[float, int, str]:
    """Processor time, bytes, and an error or an empty text."""
    forget_peak()
    before, start = peak(), time.process_time()
    wrong = ""
    try:
        target.run(name, content)
    except VitvizError:
        pass
    except BaseException as error:
        wrong = f"{type(error).__name__}: {str(error)[:200]}"
    return time.process_time() - start, peak() - before, wrong


def judge(target: Target, case: Case) -> str:
    """What is wrong with a case, or an empty text."""
    times = []
    for content in case.inputs:
        size = len(content) if isinstance(content, bytes) else len(repr(content))
        seconds, peak_bytes, wrong = measure(target, case.name, content)
        if wrong:
            return wrong
        max_seconds = target.seconds + target.seconds_per_megabyte * size / MEGABYTE
        if seconds > max_seconds:
            seconds = best(target, case.name, content, seconds)
        if seconds > max_seconds:
            return f"{seconds:.2f} s for {size:,} bytes"
        if peak_bytes > target.bytes + target.bytes_per_byte * size:
            return f"{peak_bytes:,} bytes of memory for {size:,} bytes"
        times.append(seconds)
    # A slow first run would hide the growth of the others.
    if len(times) > 1 and times[-1] > FLOOR_SECONDS and not grows(times):
        times[0] = best(target, case.name, case.inputs[0], times[0])
    if not grows(times):
        return ""
    times[-1] = best(target, case.name, case.inputs[-1], times[-1])
    if not grows(times):
        return ""
    sizes = f"{len(case.inputs[0]):,} to {len(case.inputs[-1]):,} bytes"
    return f"{times[0]:.3f} to {times[-1]:.3f} s for {sizes}"


def best(target: Target, name: str, content: Any, seconds: float) -> float:
    """The shortest of three measurements, as other processes may slow down the others."""
    return min(seconds, *(measure(target, name, content)[0] for _ in range(2)))


def grows(times: list[float]) -> bool:
    """Whether the last input takes longer than its size explains."""
    return len(times) > 1 and times[-1] > FLOOR_SECONDS and times[-1] > MAX_GROWTH * max(times[0], 1e-3)


def run(name: str, seed: int, first: int, count: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MOST_ADDRESSES, MOST_ADDRESSES))
    if name == "values":
        measure(TARGETS[name], "", {})
    # Garbage collection would scan everything that was imported.
    gc.collect()
    gc.freeze()
    for number in range(first, first + count):
        print(json.dumps({"begin": number}), flush=True)
        # Its signal ends the process, even in a call that never returns to Python.
        signal.setitimer(signal.ITIMER_PROF, CASE_SECONDS)
        wrong = judge(TARGETS[name], draw_case(name, seed, number))
        print(json.dumps({"end": number, "wrong": wrong}), flush=True)


if __name__ == "__main__":
    run(sys.argv[1], *map(int, sys.argv[2:5]))
