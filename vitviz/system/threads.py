"""Run NumPy computations in several threads, since NumPy itself uses one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_threads(function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """The function's results in order, computed in as many threads as torch uses, including this one."""
    count = min(torch.get_num_threads(), len(items))
    if count < 2:
        return [function(item) for item in items]

    def run(share: int) -> list[Result]:
        return [function(item) for item in items[len(items) * share // count : len(items) * (share + 1) // count]]

    futures = [_executor().submit(run, share) for share in range(1, count)]
    return run(0) + [result for future in futures for result in future.result()]


@cache
def _executor() -> ThreadPoolExecutor:
    # Its threads start on demand and stay.
    return ThreadPoolExecutor(thread_name_prefix="vitviz")
