"""The process in which cases run: prints a line of JSON before and after each, so that a hang and a crash are found."""

from __future__ import annotations

import gc
import json
import resource
import signal
import sys
import time
from typing import Any

from tests.fuzz.targets import MEGABYTE, TARGETS, Case, Target, drawn, quick_case
from tests.isolation.test_hostile_files import forget_peak, peak
from vitviz import VitvizError

# Of a processor, for all that is measured of a case.
CASE_SECONDS = 60.0
# What takes less time than this is not compared with what is smaller: clocks and caches would be measured.
FLOOR_SECONDS = 0.25
# Input of eight times the size may take so many times as long.
MOST_GROWTH = 8**1.5
MOST_ADDRESSES = 16 * 2**30


def measured(target: Target, name: str, content: Any) -> tuple[float, int, str]:
    """Processor time, bytes and what is wrong."""
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


def judged(target: Target, case: Case) -> str:
    """What is wrong with a case; empty where nothing is."""
    times = []
    for content in case.inputs:
        size = len(content) if isinstance(content, bytes) else len(repr(content))
        seconds, held, wrong = measured(target, case.name, content)
        if wrong:
            return wrong
        most = target.seconds + target.seconds_per_megabyte * size / MEGABYTE
        if seconds > most:
            seconds = best(target, case.name, content, seconds)
        if seconds > most:
            return f"{seconds:.2f} s for {size:,} bytes"
        if held > target.bytes + target.bytes_per_byte * size:
            return f"{held:,} bytes of memory for {size:,} bytes"
        # A first time that is too long would hide how the others grow.
        times.append(seconds if times or len(case.inputs) == 1 else best(target, case.name, content, seconds))
    if not grows(times):
        return ""
    times[-1] = best(target, case.name, case.inputs[-1], times[-1])
    if not grows(times):
        return ""
    sizes = f"{len(case.inputs[0]):,} to {len(case.inputs[-1]):,} bytes"
    return f"{times[0]:.3f} to {times[-1]:.3f} s for {sizes}"


def best(target: Target, name: str, content: Any, seconds: float) -> float:
    """The least of three measurements: in the others, another process may have been in the way."""
    return min(seconds, *(measured(target, name, content)[0] for _ in range(2)))


def grows(times: list[float]) -> bool:
    """Whether the last input takes longer than its size explains."""
    return len(times) > 1 and times[-1] > FLOOR_SECONDS and times[-1] > MOST_GROWTH * max(times[0], 1e-3)


def run(name: str, seed: int, first: int, count: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MOST_ADDRESSES, MOST_ADDRESSES))
    # The warm-up of the corpus is that of all files.
    for each in ("corpus", "values") if name == "quick" else (name,):
        warm_up(TARGETS[each], each)
    # Collections of garbage would go through all that was imported.
    gc.collect()
    gc.freeze()
    for number in range(first, first + count):
        print(json.dumps({"begin": number}), flush=True)
        # Its signal ends the process, also within a call that never comes back to Python.
        signal.setitimer(signal.ITIMER_PROF, CASE_SECONDS)
        target, place = quick_case(number) if name == "quick" else (name, number)
        wrong = judged(TARGETS[target], drawn(target, seed, place))
        print(json.dumps({"end": number, "wrong": wrong}), flush=True)


def warm_up(target: Target, name: str) -> None:
    """What is imported and filled once is no case's cost."""
    seeds = target.seeds() if target.seeds else []
    for seed in seeds:
        measured(target, seed.name, seed.build(seed.units))
    if name == "values":
        measured(target, "", {})
    if name == "corpus":
        warm_up(TARGETS["pictures"], "pictures")
        warm_up(TARGETS["checkpoints"], "checkpoints")


if __name__ == "__main__":
    run(sys.argv[1], *map(int, sys.argv[2:5]))
