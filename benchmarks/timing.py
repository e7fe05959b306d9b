"""Contestants in turn, so that what slows a machine for a while slows all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter

from benchmarks.part import Run

SLOW = 5
SLOW_ROUNDS = 2


def interleave(
    runs: Mapping[str, Run], rounds: int, clock: Callable[[], float] = perf_counter, alternate: bool = False
) -> dict[str, list[float]]:
    """Seconds of every run in every round; one round before does not count.

    Each round goes in the same order, or with ``alternate`` every second one backwards.

    What took more than :data:`SLOW` times as long as the first run in the round before is timed only in the first
    :data:`SLOW_ROUNDS`.
    """

    def seconds(run: Run) -> float:
        start = clock()
        result = run()
        took = clock() - start
        # Not before the clock stopped: to give memory back is not what was asked.
        del result
        return took

    first = next(iter(runs))
    # Its very first run would count what only a process's first product needs.
    runs[first]()
    before = {name: seconds(run) for name, run in runs.items()}
    counts = {name: rounds if took <= SLOW * before[first] else SLOW_ROUNDS for name, took in before.items()}
    found: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds):
        for name, run in reversed(runs.items()) if alternate and number % 2 else runs.items():
            if number < counts[name]:
                found[name].append(seconds(run))
    return found
