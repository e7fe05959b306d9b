"""Run NumPy computations in several threads; NumPy itself uses one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_threads(function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """The function's results in order, computed in as many threads as torch computes with, this one among them."""
    count = min(torch.get_num_threads(), len(items))
    if count < 2:
        return [function(item) for item in items]

    def share(part: int) -> list[Result]:
        return [function(item) for item in items[len(items) * part // count : len(items) * (part + 1) // count]]

    others = [_helpers().submit(share, part) for part in range(1, count)]
    return share(0) + [result for other in others for result in other.result()]


@cache
def _helpers() -> ThreadPoolExecutor:
    # Threads start on demand and stay.
    return ThreadPoolExecutor(thread_name_prefix="vitviz")
