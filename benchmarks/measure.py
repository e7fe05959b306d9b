"""One measurement, for a process of its own."""

from __future__ import annotations

import ctypes
import gc
import re
import resource
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import torch
import torch.nn.functional as F
from scipy.stats import binom

from benchmarks.benchmark import Models, Run, Settings, time_of
from benchmarks.suite import BENCHMARKS

Entry = dict[str, Any]
"""One row of the results: ``case``, ``contestant``, ``kind`` and the fields of that kind."""
SLOW = 5
SLOW_ROUNDS = 2
# Tokens, width and hidden width of matrix products that make libraries allocate their buffers before a measurement.
LAYER = (1370, 768, 3072)
PROCESS = Path("/proc/self")


def measure(name: str, case_name: str, settings: Settings, memory_of: str | None = None) -> list[Entry]:
    """The entries of a benchmark's case: facts, times of all contestants in turn, or the peak memory of one."""
    torch.set_num_threads(settings.threads)
    torch.manual_seed(0)
    benchmark = BENCHMARKS[name]
    case = next(case for case in benchmark.select_cases(settings) if case.name == case_name)
    models = Models(case, settings)
    if benchmark.facts is not None:
        return [{"case": benchmark.title, "contestant": case.name, "kind": "facts", "values": benchmark.facts(models)}]
    if memory_of is not None:
        run = benchmark.contestants[memory_of](models)
        names = {"case": case.name, "contestant": memory_of, "kind": "memory"}
        return [] if run is None else [{**names, "bytes": peak_bytes(run)}]
    runs = {name: run for name, make in benchmark.contestants.items() if (run := make(models)) is not None}
    clock = processor_time if benchmark.paired else perf_counter
    seconds_by_name = interleave(runs, case.repeats, clock, alternate=benchmark.paired)
    baseline, base_seconds = next(iter(seconds_by_name.items()))
    entries = []
    for name, seconds in seconds_by_name.items():
        # In the same round, for the rounds that both have.
        ratios = [value / base for value, base in zip(seconds, base_seconds, strict=False)]
        names = {"case": case.name, "contestant": name, "kind": "time", "tokens": case.shape.tokens}
        numbers = {"seconds": spread([value / case.images for value in seconds]), "ratio": spread(ratios)}
        entries.append({**names, **numbers, "interval": median_interval(ratios), "baseline": baseline})
    return entries


def processor_time() -> float:
    """Processor seconds of this process and of its child processes that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return process_time() + children.ru_utime + children.ru_stime


def interleave(
    runs: Mapping[str, Run], rounds: int, clock: Callable[[], float] = perf_counter, alternate: bool = False
) -> dict[str, list[float]]:
    """Seconds of every run in every round, after a warm-up round, so that a slow machine affects all of them.

    Each round runs in the same order; with ``alternate``, every second round runs in reverse order.

    A run that took more than :data:`SLOW` times as long as the first run in the warm-up round is timed only in the
    first :data:`SLOW_ROUNDS`.
    """
    first = next(iter(runs))
    # The very first run includes one-time costs of the process, such as buffers of the first matrix product.
    runs[first]()
    warm = {name: time_of(run, clock) for name, run in runs.items()}
    seconds_by_name: dict[str, list[float]] = {name: [] for name in runs}
    for index in range(rounds):
        for name, run in reversed(runs.items()) if alternate and index % 2 else runs.items():
            if index < SLOW_ROUNDS or warm[name] <= SLOW * warm[first]:
                seconds_by_name[name].append(time_of(run, clock))
    return seconds_by_name


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, quartiles as NumPy's, minimum and number of values."""
    lower, median, upper = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [*values] * 3
    return {"median": median, "lower": lower, "upper": upper, "least": min(values), "count": len(values)}


def median_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The interval that holds the median with at least 95 % confidence, by ranks, for any distribution.

    None for fewer than six values, which have no such interval.
    """
    rank = int(binom.ppf(0.025, len(values), 0.5))
    ordered = sorted(values)
    return (ordered[rank - 1], ordered[-rank]) if rank else None


def peak_bytes(run: Run) -> int:
    """Peak bytes of the process during the run, with its result alive, less those before the run.

    Linux alone can reset the peak.
    """
    heads, (tokens, width, hidden) = 12, LAYER
    # Libraries allocate their buffers, and free memory is returned, whose reuse would not be measured.
    with torch.inference_mode():
        heads_tensor = torch.ones(1, heads, tokens, width // heads)
        context = F.scaled_dot_product_attention(heads_tensor, heads_tensor, heads_tensor).view(tokens, width)
        for count in (tokens, tokens // 2, tokens // 4):
            F.linear(F.gelu(F.linear(context[:count], torch.ones(hidden, width))), torch.ones(width, hidden))
        del heads_tensor, context
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    before = status_bytes("VmRSS")
    (PROCESS / "clear_refs").write_text("5")
    result = run()
    peak = status_bytes("VmHWM") - before
    del result
    return peak


def status_bytes(field: str, process: Path = PROCESS) -> int:
    """A field of the status of a process."""
    return 1024 * int(re.findall(rf"^{field}:\s+(\d+) kB$", (process / "status").read_text(), re.MULTILINE)[0])
