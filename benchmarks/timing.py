"""Timing of contestants in turn, so that temporary slowness of the machine affects all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter

from benchmarks.benchmark import Run

SLOW = 5
SLOW_ROUNDS = 2


def interleave(
    runs: Mapping[str, Run], rounds: int, clock: Callable[[], float] = perf_counter, alternate: bool = False
) -> dict[str, list[float]]:
    """Seconds of every run in every round, after a warm-up round.

    Each round runs in the same order; with ``alternate``, every second round runs in reverse order.

    A run that took more than :data:`SLOW` times as long as the first run in the warm-up round is timed only in the
    first :data:`SLOW_ROUNDS`.
    """

    def seconds(run: Run) -> float:
        start = clock()
        result = run()
        duration = clock() - start
        # Freed after the clock stops, since freeing memory is not part of the run.
        del result
        return duration

    first = next(iter(runs))
    # The very first run includes one-time costs of the process, such as buffers of the first matrix product.
    runs[first]()
    first_seconds = {name: seconds(run) for name, run in runs.items()}
    counts = {
        name: rounds if duration <= SLOW * first_seconds[first] else SLOW_ROUNDS
        for name, duration in first_seconds.items()
    }
    seconds_by_name: dict[str, list[float]] = {name: [] for name in runs}
    for round_index in range(rounds):
        for name, run in reversed(runs.items()) if alternate and round_index % 2 else runs.items():
            if round_index < counts[name]:
                seconds_by_name[name].append(seconds(run))
    return seconds_by_name
